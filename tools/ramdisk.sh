#!/usr/bin/env bash
# Builds dist/initrd-<arch>.img, and dist/vmlinuz-<arch> beside it: what a bare machine boots.
#
#   tools/ramdisk.sh [amd64|arm64]        amd64 when no architecture is named
#
# KERNEL=cloud|generic   which Debian kernel (default generic)
# LIST=minimal|full|PATH which of its modules (default minimal)
# TOOLS=a,b,c            outside programs; those of another architecture need ROOT, a system of it
# MICROCODE=PATH         an uncompressed cpio archive to put in front
#
# ramdisk/README.md says how to use another kernel.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${1:-amd64}
case $arch in
  amd64 | arm64) ;;
  *) echo "usage: $0 [amd64|arm64]" >&2; exit 2 ;;
esac
own=$(dpkg --print-architecture)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# What `bcd ramdisk`'s kinds call, and a shell for bc.debug.
tools=${TOOLS-nvme,hdparm,blkdiscard,blockdev,lsblk,mount,umount,debugfs,e2fsck,mcopy,mdir,mtype,udevadm,kexec,busybox}
shell=/bin/busybox=/bin/sh
if [[ $arch != "$own" && -z ${ROOT:-} ]]; then
  echo "ramdisk: no outside programs in the $arch image: ROOT names no $arch system to take them from" >&2
  tools='' shell=''
fi

kernel=$(tools/kernel.sh "$arch" "${KERNEL:-generic}")
tools/static.sh "$arch"
cargo build --locked --quiet --profile operator --features control-plane --workspace --bin ramdisk
set -- --bcd "dist/bcd_${version}_linux_$arch" --init "dist/init_${version}_linux_$arch" \
  --modules "$(echo "$kernel"/lib/modules/*)" --list "${LIST:-minimal}" \
  --tools "$tools" --files "${ROOT:+$shell}" --output "dist/initrd-$arch.img"
[[ -z ${ROOT:-} ]] || set -- "$@" --root "$ROOT"
[[ -z ${MICROCODE:-} ]] || set -- "$@" --microcode "$MICROCODE"
target/operator/ramdisk build "$@"
cp "$kernel/vmlinuz" "dist/vmlinuz-$arch.new"
mv "dist/vmlinuz-$arch.new" "dist/vmlinuz-$arch"
