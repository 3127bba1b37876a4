#!/bin/busybox sh
# shellcheck shell=dash
# What a lab's guest runs in place of init (rdinit=/lab/guest): modules, a static network, the data disk, then
# what the disk's own script says. The console is the lab's only view of it.
set -u
b=/bin/busybox
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
$b mkdir -p /proc /sys /dev /run /data
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev 2>/dev/null
$b mount -t tmpfs run /run
for module in virtio_pci virtio_blk virtio_net; do /sbin/modprobe $module; done
$b ip link set lo up
$b ip link set eth0 up && $b ip addr add 10.0.2.15/24 dev eth0 && $b ip route add default via 10.0.2.2
n=0
while [ ! -b /dev/vda ] && [ $n -lt 50 ]; do $b usleep 100000; n=$((n + 1)); done
$b mount -t ext4 /dev/vda /data || echo "guest: the data disk does not mount"
echo "guest: boot id $($b cat /proc/sys/kernel/random/boot_id)"
# shellcheck source=/dev/null
. /data/run.sh
echo "guest: the script ended with $?"
while :; do $b sleep 3600; done
