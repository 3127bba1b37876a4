#!/usr/bin/env bash
# Builds what ships, static, for musl: dist/bcd_<version>_linux_<arch>, and beside it init, which the ramdisk
# starts with.
#
#   tools/static.sh [amd64] [arm64]        both, side by side, when none is named
#   tools/static.sh --example NAME ARCH    an example built as bcd is, for benches; it stays where cargo puts it
#
# Two toolchains can do it; the script takes the first that the machine has:
#
# 1. Debian's own packages. Debian has no precompiled standard library for musl, but it packages
#    the library's sources (rust-web-src), so `-Zbuild-std` compiles std along with bcd. That
#    flag is open on a stable compiler through RUSTC_BOOTSTRAP, which is what it is for. rustc
#    then expects start files and libc in a directory that rustup would ship; here Debian's
#    musl-dev provides them, so the link line is spelled out:
#      - link-self-contained=no, -nostartfiles, -nostdlib: nothing implicit, and above all not
#        glibc's start files, which gcc would add by itself;
#      - rcrt1.o relocates a static PIE at start (amd64), after relr.c has what was packed; crt1.o
#        starts a plain static program (arm64, where Debian's gcc cannot make a static PIE for musl);
#      - -l:libc.a instead of -lc: rustc puts -Bdynamic before it, and -lc would then find
#        libc.so, giving a "static" program that jumps through an empty table;
#      - libgcc.a for the compiler's helper routines, libc.a again for what those need;
#      - an empty libunwind.a: std asks for one, but with panic=abort nothing ever unwinds, and
#        gcc's own unwinder needs a symbol that only glibc has.
#    arm64 also needs the other architecture's musl-dev. It is unpacked beside the build and never
#    installed: the machine's package database does not learn of a foreign architecture.
# 2. rustup's, when `rustup target add x86_64-unknown-linux-musl` (or aarch64-...) was run: for other systems. Its
#    library is compiled for speed and prints backtraces, so what it gives is 0.7 MB larger.
#
# In both, what an idle node never runs stands apart (tools/seldom.ld).
#
# Both builds are reproducible: SOURCE_DATE_EPOCH is the commit's time, and the paths of the
# source tree, of cargo's registry and of the compiler's sources are remapped. Two compilers give
# two binaries; the same compiler gives the same bytes in any directory.
#
# A binary enters dist/ by rename and only after it was checked, and an old one is removed before
# the build starts: what lies there is never stale and never half written.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[[ -n $version ]] || { echo "static: no version in Cargo.toml's [workspace.package]" >&2; exit 1; }
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)
fi
export SOURCE_DATE_EPOCH

need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Debian's compiler with its library's sources, new enough. Debian 12's release has an older one; the one that builds
# bcd comes with its security updates.
debian_builds() {
  local have
  [[ -x /usr/bin/cargo && -x /usr/bin/rustc && -d $(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library ]] || return 1
  have=$(/usr/bin/rustc --version | cut -d ' ' -f 2)
  [[ $(printf '%s\n' "$need" "$have" | sort -V | head -n 1) == "$need" ]]
}

has_rustup_target() {
  command -v rustup >/dev/null && rustup target list --installed 2>/dev/null | grep -qx "$1"
}

# musl's headers, libc.a and start files for arm64, from the archive this machine already uses.
# apt runs on a private state directory, so neither root nor a foreign architecture is needed.
arm64_sysroot() {
  local dir=$root/target/static/arm64-sysroot
  if [[ ! -e $dir/usr/lib/aarch64-linux-musl/libc.a ]]; then
    local apt=$root/target/static/apt
    rm -rf "$apt" "$dir"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$dir"
    : > "$apt/status"
    local -a options=(-qq -o "Dir::State::Lists=$apt/lists" -o "Dir::State::status=$apt/status"
      -o "Dir::Cache=$apt/cache" -o APT::Architecture=arm64 -o APT::Architectures::=arm64
      -o APT::Sandbox::User= -o Acquire::Languages=none)
    apt-get "${options[@]}" update >&2 || true
    (cd "$apt" && apt-get "${options[@]}" download musl-dev:arm64 >&2)
    dpkg -x "$apt"/musl-dev_*_arm64.deb "$dir"
  fi
  echo "$dir"
}

build() {
  local arch=$1 target
  case $arch in
    amd64) target=x86_64-unknown-linux-musl ;;
    arm64) target=aarch64-unknown-linux-musl ;;
  esac

  local cargo_home=${CARGO_HOME:-$HOME/.cargo} path=$PATH
  local -a extra=()
  # With panic=abort nothing unwinds: the tables for it would be a tenth of the binary.
  local -a flags=(-C target-feature=+crt-static -C force-unwind-tables=no --remap-path-prefix="$root=/bcd"
    --remap-path-prefix="$cargo_home=/cargo" -C "link-arg=-Wl,-T,$root/tools/seldom.ld")
  export CARGO_TARGET_DIR=$root/target/static/$arch
  # zstd's decoder once: not also for BMI2, nor for windows larger than what is taken.
  local zstd="-DDYNAMIC_BMI2=0 -DZSTD_FORCE_DECOMPRESS_SEQUENCES_SHORT=1"
  export CFLAGS_x86_64_unknown_linux_musl=$zstd CFLAGS_aarch64_unknown_linux_musl=$zstd

  if ! debian_builds; then
    has_rustup_target "$target" || {
      echo "static: neither Debian's cargo-web, rustc-web and rust-web-src (Rust $need or later) nor rustup's target" \
        "$target is here: run tools/packages.sh static, with the security updates (bookworm-security) in apt's" \
        "sources, or run: rustup target add $target" >&2
      return 1
    }
    local sysroot
    sysroot=$(rustc --print sysroot)
    flags+=(--remap-path-prefix="$sysroot=/rust")
    if [[ $arch == amd64 ]]; then
      export CC_x86_64_unknown_linux_musl=musl-gcc
    else
      export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc
      export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
    fi
  else
    path=/usr/bin:/bin
    export RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc
    unset RUSTUP_TOOLCHAIN
    # At "z" std keeps a printer of backtraces that nothing here calls, and which needs an unwinder.
    extra=("-Zbuild-std=std,panic_abort" -Zbuild-std-features=optimize_for_size
      --config 'profile.release.package.std.opt-level="s"')
    local sysroot start musl sources
    sysroot=$(/usr/bin/rustc --print sysroot)
    sources=$(readlink -f "$sysroot/lib/rustlib/src/rust")
    # The compiler calls its library's sources by the link under its sysroot or by their real place.
    flags+=(--remap-path-prefix="$sysroot/lib/rustlib/src/rust=/rust" --remap-path-prefix="$sources=/rust")
    mkdir -p target/static/empty
    [[ -e target/static/empty/libunwind.a ]] || printf '!<arch>\n' > "target/static/empty/libunwind.a.$arch"
    [[ -e target/static/empty/libunwind.a ]] || mv "target/static/empty/libunwind.a.$arch" target/static/empty/libunwind.a
    flags+=(-C link-self-contained=no -L "$root/target/static/empty")
    if [[ $arch == amd64 ]]; then
      musl=/usr/lib/x86_64-linux-musl start=rcrt1.o
      export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=gcc CC_x86_64_unknown_linux_musl=musl-gcc
      flags+=(-C link-arg=-static-pie)
      # Packed relocations, and a start that unpacks them.
      gcc -Os -fPIE -fno-stack-protector -fno-asynchronous-unwind-tables -c tools/relr.c -o target/static/relr.o
      flags+=(-C "link-arg=$root/target/static/relr.o" -C "link-arg=-Wl,-z,pack-relative-relocs"
        -C "link-arg=-Wl,-e,relr_start")
    else
      local arm64
      arm64=$(arm64_sysroot)
      musl=$arm64/usr/lib/aarch64-linux-musl start=crt1.o
      export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc
      export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
      local gcc_headers
      gcc_headers=$(aarch64-linux-gnu-gcc -print-file-name=include)
      export CFLAGS_aarch64_unknown_linux_musl="$zstd -nostdinc -isystem $gcc_headers -isystem $arm64/usr/include/aarch64-linux-musl"
      flags+=(-C link-arg=-static)
    fi
    flags+=(-L "$musl" -C link-arg=-nostartfiles -C link-arg=-nostdlib
      -C "link-arg=$musl/$start" -C "link-arg=$musl/crti.o" -C "link-arg=$musl/crtn.o"
      -C link-arg=-l:libc.a -C link-arg=-l:libgcc.a -C link-arg=-l:libc.a)
  fi

  # \x1f between flags: a path with a space in it stays one argument.
  local joined
  joined=$(printf '%s\x1f' "${flags[@]}")
  unset RUSTFLAGS
  export CARGO_ENCODED_RUSTFLAGS=${joined%$'\x1f'}
  PATH=$path cargo build --locked --release "${what[@]}" --target "$target" "${extra[@]}" || return 1
  [[ -z $example ]] || return 0

  mkdir -p dist
  local program out headers
  for program in init bcd; do
    out=dist/${program}_${version}_linux_$arch
    cp "$CARGO_TARGET_DIR/$target/release/$program" "$out.new"
    headers=$(LC_ALL=C readelf -lWd "$out.new")
    if grep -qE 'INTERP|\(NEEDED\)' <<< "$headers"; then
      echo "static: the $arch $program is not static (it names an interpreter or a library)" >&2
      rm -f "$out.new"
      return 1
    fi
    mv "$out.new" "$out"
    echo "$out $(stat -c %s "$out") bytes"
  done
}

what=(-p bcd -p init --bin bcd --bin init) example=
if [[ ${1:-} == --example && $# -ge 2 ]]; then
  example=$2 what=(-p bcd --example "$2")
  shift 2
fi
[[ $# -gt 0 ]] || set -- amd64 arm64
for arch in "$@"; do
  case $arch in
    amd64 | arm64) [[ -n $example ]] || rm -f "dist/bcd_${version}_linux_$arch"* "dist/init_${version}_linux_$arch"* ;;
    *) echo "usage: $0 [--example NAME] [amd64] [arm64]" >&2; exit 2 ;;
  esac
done

# One subshell an architecture: their environments differ, their target directories too.
declare -A jobs
for arch in "$@"; do
  mkdir -p target/static
  (build "$arch") > "target/static/$arch.log" 2>&1 &
  jobs[$arch]=$!
done
failed=0
for arch in "$@"; do
  if wait "${jobs[$arch]}"; then
    [[ -n $example ]] || tail -n 2 "target/static/$arch.log"
  else
    cat "target/static/$arch.log" >&2
    echo "static: the $arch build failed" >&2
    failed=1
  fi
done
exit "$failed"
