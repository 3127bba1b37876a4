#!/usr/bin/env bash
# Makes sure that this Debian machine has what a make target needs.
#
#   tools/packages.sh static|test|lint|demo|bench|fuzz|ramdisk
#   tools/packages.sh --programs           names those whose programs go into the ramdisk
#
# As root, missing packages are installed with apt. Otherwise the script names them and stops
# with exit code 2, having changed nothing. This is the only place that lists packages.
set -euo pipefail

build="gcc libc6-dev make git ca-certificates binutils"
# A compiler with its own library sources, the C library to link, and a linker for arm64.
musl="musl-dev musl-tools gcc-aarch64-linux-gnu rustc-web cargo-web rust-web-src"

# What an image of the ramdisk is made with, the programs that go into it, and what the labs boot it in.
image="kmod zstd xz-utils"
programs="nvme-cli hdparm util-linux mount e2fsprogs mtools udev kexec-tools busybox-static"
guest="qemu-system-x86 qemu-system-arm qemu-utils ovmf swtpm cpio mmdebstrap"

case "${1:-}" in
  demo) packages="$build $musl" ;;
  static) packages="$build $musl" ;;
  # libFuzzer is C++.
  fuzz) packages="$build g++" ;;
  lint) packages="$build shellcheck python3" ;;
  test | bench)
    packages="$build $musl shellcheck python3 python3-venv qemu-user-static strace valgrind curl wget openssl etcd-server iproute2 nftables procps
      tinyproxy-bin dnsmasq-base nginx zsh fish mandoc groff-base systemd systemd-container dbus lintian gdisk $image $programs $guest"
    ;;
  ramdisk) packages="$build $musl $image $programs" ;;
  --programs)
    echo "$programs"
    exit 0
    ;;
  *)
    echo "usage: $0 static|test|lint|demo|bench|fuzz|ramdisk" >&2
    exit 2
    ;;
esac

if ! command -v cargo >/dev/null; then
  echo "cargo is not on PATH: install the Rust toolchain with rustup (https://rustup.rs) first" >&2
  exit 2
fi
if ! command -v dpkg-query >/dev/null; then
  echo "this is no Debian system: install the equivalents of: $packages" >&2
  exit 2
fi

missing=()
for package in $packages; do
  state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $state == ii* ]] || missing+=("$package")
done
# Debian's compiler may be there and too old; installing it again upgrades it, where the security updates are enabled.
need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
have=$(dpkg-query -W -f '${Version}' rustc-web 2>/dev/null || true)
if [[ " $packages " == *" rustc-web "* && " ${missing[*]-} " != *" rustc-web "* ]] && dpkg --compare-versions "$have" lt "$need"; then
  missing+=(rustc-web cargo-web rust-web-src)
fi
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $(id -u) -ne 0 ]]; then
  echo "missing packages: ${missing[*]}" >&2
  echo "install them with: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 2
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing ${missing[*]}"
# A third-party source that is out of reach must not stop the build: the install below decides.
apt-get update -qq || true
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
