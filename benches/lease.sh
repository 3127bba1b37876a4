#!/bin/busybox sh
# shellcheck shell=dash disable=SC2154
# udhcpc's script: takes the lease.
[ "$1" = bound ] || exit 0
/bin/busybox ip addr add "$ip/$mask" dev "$interface"
/bin/busybox ip route add default via "$router"
echo "nameserver $dns" > /etc/resolv.conf
