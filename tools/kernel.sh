#!/usr/bin/env bash
# Fetches a Debian kernel for the ramdisk and the labs, unpacks it and runs depmod over it.
#
#   tools/kernel.sh amd64|arm64 [cloud|generic]
#
# Prints the directory it is in: `vmlinuz`, and `lib/modules/VERSION`. `cloud` (the default) has the drivers of virtual
# machines; `generic` those of every server. Nothing is installed; what is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-} flavour=${2:-cloud}
case $arch-$flavour in
  amd64-cloud | arm64-cloud) package=linux-image-cloud-$arch ;;
  amd64-generic | arm64-generic) package=linux-image-$arch ;;
  *) echo "usage: $0 amd64|arm64 [cloud|generic]" >&2; exit 2 ;;
esac
dir=$PWD/target/kernel/$arch-$flavour
mkdir -p target/kernel
# Several labs may ask at once.
exec 9> "target/kernel/$arch-$flavour.lock"
flock 9
if [[ -e $dir/vmlinuz ]]; then
  echo "$dir"
  exit 0
fi

work=$(mktemp -d "target/kernel/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root"
image_of() { sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1; }
options=()
image=''
if [[ $(dpkg --print-architecture) == "$arch" ]]; then
  image=$(apt-cache depends "$package" 2>/dev/null | image_of)
  [[ -z $image ]] || (cd "$work" && apt-get -qq -o APT::Sandbox::User= download "$image" >&2) || image=''
fi
if [[ -z $image ]]; then
  # The machine's own lists do not know it, or an old one: apt on a state of its own, so that neither root nor a
  # foreign architecture is needed.
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  : > "$work/status"
  options=(-qq -o "Dir::State::Lists=$PWD/$work/lists" -o "Dir::State::status=$PWD/$work/status"
    -o "Dir::Cache=$PWD/$work/cache" -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch"
    -o APT::Sandbox::User= -o Acquire::Languages=none)
  apt-get "${options[@]}" update >&2 || true
  image=$(apt-cache "${options[@]}" depends "$package" | image_of)
  [[ -n $image ]] || { echo "kernel: the package $package is in no archive this machine uses" >&2; exit 1; }
  (cd "$work" && apt-get "${options[@]}" download "$image:$arch" >&2)
fi
dpkg -x "$work"/linux-image-*.deb "$work/root"
mv "$work"/root/boot/vmlinuz-* "$work/root/vmlinuz"
# Debian 13's packages have their modules below /usr.
if [[ ! -d $work/root/lib/modules ]]; then
  mkdir -p "$work/root/lib"
  mv "$work/root/usr/lib/modules" "$work/root/lib/modules"
fi
version=$(basename "$work"/root/lib/modules/*)
PATH=$PATH:/usr/sbin:/sbin depmod -b "$work/root" "$version"
rm -rf "$dir"
mv "$work/root" "$dir"
echo "$dir"
