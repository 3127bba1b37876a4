#!/usr/bin/env bash
# Makes the root file system of a Debian with systemd, as the labs' guests boot it, with the modules of the kernel in
# a directory that tools/kernel.sh made. Needs root.
#
#   tools/debian.sh KERNEL-DIRECTORY
#
# Prints the image's path, ext4. What is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

kernel=${1:-}
[[ -d $kernel/lib/modules ]] || { echo "usage: $0 KERNEL-DIRECTORY" >&2; exit 2; }
image=$PWD/target/debian/root.img
mkdir -p target/debian
exec 9> target/debian/lock
flock 9
if [[ -e $image && $image -nt tools/debian.sh ]]; then
  echo "$image"
  exit 0
fi

work=$(mktemp -d target/debian/new.XXXXXX)
trap 'rm -rf "$work"' EXIT
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,udev,dbus,kmod,iproute2,curl,ca-certificates,passwd \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  bookworm "$work/root" >&2
root=$work/root
cp -r "$kernel/lib/modules" "$root/usr/lib/modules"
printf 'virtio_pci\nvirtio_net\n' > "$root/etc/modules-load.d/lab.conf"
echo lab > "$root/etc/hostname"
printf '127.0.0.1 localhost\n' > "$root/etc/hosts"
: > "$root/etc/fstab"
rm -f "$root/etc/machine-id"
: > "$root/etc/machine-id"
cat > "$root/etc/systemd/network/lab.network" <<END
[Match]
Type=ether
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
END
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
for unit in lab.service systemd-networkd.service; do
  systemctl --root="$root" --quiet enable "$unit"
done
for unit in getty@.service serial-getty@.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
  systemd-networkd-wait-online.service; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
mke2fs -q -t ext4 -d "$root" "$work/root.img" 1500M
mv "$work/root.img" "$image"
echo "$image"
