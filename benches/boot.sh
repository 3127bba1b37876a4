#!/bin/busybox sh
# shellcheck shell=dash
# What the guests of ramdisk_vs_busybox.py run in place of init (rdinit=/lab/boot): `lab=ours` goes on as /init, `lab=peer`
# does what busybox and curl can. Both say on the console when they begin, by the clock since the kernel's start.
b=/bin/busybox
$b mkdir -p /proc /sys /dev
$b mount -t proc proc /proc
read -r line < /proc/cmdline
case $line in
  *lab=ours*)
    # bcd's log has the wall clock: which second began when.
    second=$($b date +%s)
    while now=$($b date +%s) && [ "$now" = "$second" ]; do :; done
    read -r up _ < /proc/uptime
    echo "lab: second $now at $up"
    $b umount /proc
    echo "lab: start $up"
    exec /init
    ;;
esac
read -r up _ < /proc/uptime
echo "lab: start $up"
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in virtio_pci virtio_net; do $b modprobe $module; done
$b ip link set eth0 up
$b udhcpc -i eth0 -n -q -f -t 8 -T 1 -s /lab/lease >/dev/null 2>&1 || echo "lab: no lease"
read -r up _ < /proc/uptime
echo "lab: lease $up"
url=${line##*lab.url=}
/usr/bin/curl --silent --insecure --tlsv1.3 --output /dev/null --write-out 'lab: handshake %{time_appconnect}\n' "${url%% *}"
read -r up _ < /proc/uptime
echo "lab: end $up"
while :; do $b sleep 3600; done
