#!/usr/bin/env bash
# Builds dist/initrd-<arch>.img, and dist/vmlinuz-<arch> beside it: what a bare machine boots.
#
#   tools/ramdisk.sh [amd64|arm64]        amd64 when no architecture is named
#
# KERNEL=cloud|generic   which Debian kernel (default generic)
# LIST=minimal|full|PATH which of its modules (default minimal)
# TOOLS=a,b,c            outside programs
# ROOT=DIR               a system to take them from (default: this machine's, or Debian's packages for another architecture)
# MICROCODE=PATH         an uncompressed cpio archive to put in front
# LEVEL=N                zstd's level, 1 to 19 (default 19)
# OUTPUT=DIR             where the two files go (default dist)
#
# The labs name what is built already: BCD, INIT (static, of that architecture) and RAMDISK (the builder), all or none.
#
# ramdisk/README.md says how to use another kernel.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-amd64}
case $arch in
  amd64 | arm64) ;;
  *) echo "usage: $0 [amd64|arm64]" >&2; exit 2 ;;
esac
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# What `bcd ramdisk`'s kinds call, and a shell for bc.debug.
tools=${TOOLS-nvme,hdparm,blkdiscard,blockdev,lsblk,mount,umount,debugfs,e2fsck,mcopy,mdir,mtype,udevadm,kexec,busybox}
output=${OUTPUT:-dist}

kernel=$(tools/kernel.sh "$arch" "${KERNEL:-generic}")
root=${ROOT:-}
if [[ -z $root && $arch != "$(dpkg --print-architecture)" && -n $tools ]]; then
  root=$(tools/root.sh "$arch")
fi
if [[ -z ${BCD:-} ]]; then
  tools/static.sh "$arch"
  cargo build --locked --quiet --profile operator --features control-plane --workspace --bin ramdisk
  BCD=dist/bcd_${version}_linux_$arch INIT=dist/init_${version}_linux_$arch RAMDISK=target/operator/ramdisk
fi
set -- --bcd "$BCD" --init "$INIT" --modules "$(echo "$kernel"/lib/modules/*)" --list "${LIST:-minimal}" --tools "$tools" \
  --root "${root:-/}" --level "${LEVEL:-19}" --output "$output/initrd-$arch.img"
[[ ,$tools, != *,busybox,* ]] || set -- "$@" --links /bin/sh=busybox
[[ -z ${MICROCODE:-} ]] || set -- "$@" --microcode "$MICROCODE"
mkdir -p "$output"
"$RAMDISK" build "$@"
cp "$kernel/vmlinuz" "$output/vmlinuz-$arch.new"
mv "$output/vmlinuz-$arch.new" "$output/vmlinuz-$arch"
