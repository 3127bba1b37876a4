# shellcheck shell=bash
# What the roots of the labs' Debians have in common; for `.`.

# debian_root ROOT PACKAGE,PACKAGE...: makes a minimal one with systemd, the network that guests have, and no identity.
debian_root() {
  local root=$1 packages=$2
  mmdebstrap --quiet --variant=minbase --include="systemd,systemd-sysv,udev,dbus,kmod,iproute2,passwd,$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$root" >&2
  echo lab > "$root/etc/hostname"
  printf '127.0.0.1 localhost\n' > "$root/etc/hosts"
  rm -f "$root/etc/machine-id"
  : > "$root/etc/machine-id"
  cat > "$root/etc/systemd/network/lab.network" <<END
[Match]
Type=ether
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
END
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
}

# debian_units ROOT UNIT [MASKED...]: has UNIT and the network start, and nothing that a lab waits for in vain.
debian_units() {
  local root=$1 unit
  systemctl --root="$root" --quiet enable "$2" systemd-networkd.service
  shift 2
  for unit in "$@" getty@.service serial-getty@.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    fstrim.timer systemd-networkd-wait-online.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
  done
}
