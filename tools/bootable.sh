#!/usr/bin/env bash
# Makes what a bootable Debian consists of, for the labs that deploy one: a kernel with its initrd, systemd, and GRUB for
# BIOS and UEFI machines, whose grub.cfg is the one that the loader's unit tests read. Needs root.
#
#   tools/bootable.sh
#
# Prints a directory: root.img (ext4), boot.img and core.img (GRUB's first sectors, and what they load), esp.img (an EFI
# system partition without the loader that firmware finds by itself). What is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/guest.sh
. tools/guest.sh

into=$PWD/target/debian/bootable
config=src/deploy/loader/testdata/debian.cfg
uuid=4f6c2f0b-92b7-4d0c-a2d7-7f0e3c9c2d11
mkdir -p target/debian
exec 9> target/debian/bootable.lock
flock 9
if [[ -e $into/root.img && $into/root.img -nt tools/bootable.sh && $into/root.img -nt tools/guest.sh && $into/root.img -nt $config ]]; then
  echo "$into"
  exit 0
fi

work=$(mktemp -d target/debian/new.XXXXXX)
trap 'rm -rf "$work"' EXIT
root=$work/root
debian_root "$root" initramfs-tools,zstd,linux-image-cloud-amd64,grub-pc-bin,grub-efi-amd64-bin,grub-common
version=$(basename "$(echo "$root"/boot/vmlinuz-*)")
version=${version#vmlinuz-}
for platform in i386-pc x86_64-efi; do
  mkdir -p "$root/boot/grub/$platform"
  cp "$root/usr/lib/grub/$platform"/*.mod "$root/usr/lib/grub/$platform"/*.lst "$root/boot/grub/$platform/"
done
# Whether the firmware has a menu is a question that the GRUB of Debian 12 takes for an order to go there.
sed -e "s/6\.1\.0-28-cloud-amd64/$version/g" -e 's/earlyprintk=ttyS0,115200 consoleblank=0/no_timer_check random.trust_cpu=on/' \
  -e 's/timeout=5/timeout=1/' -e '/BEGIN .*uefi-firmware/,/END .*uefi-firmware/d' "$config" > "$root/boot/grub/grub.cfg"
parts=(part_gpt ext2 normal configfile linux search search_fs_uuid test echo serial terminal loadenv sleep boot minicmd)
chroot "$root" grub-mkimage -O i386-pc -o /core.img -p '(hd0,gpt2)/boot/grub' biosdisk "${parts[@]}"
mv "$root/core.img" "$work/core.img"
# Under UEFI the disks' order is the firmware's: the root is found by what is on it.
printf '%s\n' "search --no-floppy --fs-uuid --set=root $uuid" "set prefix=(\$root)/boot/grub" > "$root/early.cfg"
chroot "$root" grub-mkimage -O x86_64-efi -o /grubx64.efi -p /boot/grub -c /early.cfg "${parts[@]}"
mformat -C -i "$work/esp.img" -T 32768 -h 16 -s 63 ::
mmd -i "$work/esp.img" ::/EFI ::/EFI/debian
mcopy -i "$work/esp.img" "$root/grubx64.efi" ::/EFI/debian/grubx64.efi
rm "$root/early.cfg" "$root/grubx64.efi"
cp "$root/usr/lib/grub/i386-pc/boot.img" "$work/boot.img"

echo "UUID=$uuid / ext4 defaults 0 0" > "$root/etc/fstab"
# The lab writes bcd into the image; what it joins with is left by the ramdisk that deploys it.
cat > "$root/etc/systemd/system/bcd.service" <<END
[Unit]
After=network.target
[Service]
ExecStartPre=/usr/local/bin/bcd join --attestor provisioned
ExecStart=/usr/local/bin/bcd node
StandardOutput=journal+console
StandardError=journal+console
Restart=always
RestartSec=5
[Install]
WantedBy=multi-user.target
END
debian_units "$root" bcd.service systemd-logind.service
rm -rf "$root/usr/lib/grub"
mke2fs -q -t ext4 -U "$uuid" -d "$root" "$work/root.img" 800M >&2
rm -rf "$root"
rm -rf "$into"
chmod 755 "$work"
mv "$work" "$into"
trap - EXIT
echo "$into"
