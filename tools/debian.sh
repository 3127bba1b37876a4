#!/usr/bin/env bash
# Makes the root file system of a Debian with systemd, as the labs' guests boot it, with the modules of the kernel in
# a directory that tools/kernel.sh made. Needs root.
#
#   tools/debian.sh KERNEL-DIRECTORY
#
# Prints the image's path, ext4. What is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/guest.sh
. tools/guest.sh

kernel=${1:-}
[[ -d $kernel/lib/modules ]] || { echo "usage: $0 KERNEL-DIRECTORY" >&2; exit 2; }
image=$PWD/target/debian/root.img
mkdir -p target/debian
exec 9> target/debian/lock
flock 9
if [[ -e $image && $image -nt tools/debian.sh && $image -nt tools/guest.sh ]]; then
  echo "$image"
  exit 0
fi

work=$(mktemp -d target/debian/new.XXXXXX)
trap 'rm -rf "$work"' EXIT
root=$work/root
debian_root "$root" curl,ca-certificates
cp -r "$kernel/lib/modules" "$root/usr/lib/modules"
printf 'virtio_pci\nvirtio_net\n' > "$root/etc/modules-load.d/lab.conf"
: > "$root/etc/fstab"
# What the lab puts beside, and a root shell on the second serial line.
cat > "$root/etc/systemd/system/lab.service" <<END
[Unit]
After=multi-user.target
[Service]
ExecStartPre=/bin/sh -c 'mkdir -p /run/lab; mountpoint -q /run/lab || mount -o ro /dev/nvme1n1 /run/lab; stty -F /dev/ttyS1 raw -echo'
Environment=PS1=
# A shell at a terminal does not hear SIGTERM.
KillSignal=SIGKILL
ExecStart=/bin/sh -c 'exec /bin/sh </dev/ttyS1 >/dev/ttyS1 2>&1'
Restart=always
[Install]
WantedBy=multi-user.target
END
debian_units "$root" lab.service
mke2fs -q -t ext4 -d "$root" "$work/root.img" 1500M
mv "$work/root.img" "$image"
echo "$image"
