#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# A small Debian node with systemd and sshd, from this machine's own Debian: image.sh FOLDER
# Leaves disk.img, vmlinuz, initrd, id (ssh's key for root), known_hosts, and perhaps a QEMU, there.
set -eu
# What is mounted on the way is gone with the script, however it ends.
if [ -z "${OWN_MOUNTS:-}" ] && unshare --mount true 2>/dev/null; then
    OWN_MOUNTS=yes exec unshare --mount sh "$0" "$1"
fi
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
root=$PWD/root
home=$root/root
apt-get --quiet=2 update || true # the mirror no longer has what an old list names; a source that is not Debian's may be away

# shellcheck disable=SC2016 # these are apt's
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    grep " $codename" | sort -u >sources.list
apt-config dump --format '%F "%v";%n' Acquire::http::Proxy Acquire::https::Proxy >proxies # of this machine's apt, which mmdebstrap does not read
mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Acquire::Languages "none"' --aptopt="$PWD/proxies" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=systemd,systemd-sysv,udev,dbus,kmod,python3,python3-cffi-backend,openssh-server,iproute2,procps \
    "$codename" "$root" sources.list

# Of bookworm's QEMU whatever starts processes takes three times as long.
if [ "$codename" = bookworm ]; then
    sh "$here/newer_qemu.sh" || rm -rf qemu apt
fi

# Unpacked and not installed: nothing here needs the kernel's boot loader, and this machine may have a busybox that is not static.
kernel=$(apt-cache depends linux-image-cloud-amd64 | grep -oPm1 'linux-image-\K\d[^ ]+')
apt-get --quiet=2 -o APT::Sandbox::User=root download "linux-image-$kernel" busybox-static
dpkg -x linux-image-*.deb kernel
dpkg -x busybox-static_*.deb busybox
cp "kernel/boot/vmlinuz-$kernel" vmlinuz
mkdir -p "$root/lib/modules" initramfs/bin initramfs/modules initramfs/dev initramfs/newroot
cp -r "kernel/lib/modules/$kernel" "$root/lib/modules/"
chroot "$root" depmod "$kernel"

modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk"
cp busybox/bin/busybox initramfs/bin/
for module in $modules; do
    find "kernel/lib/modules/$kernel" -name "$module.ko" -exec cp {} initramfs/modules/ \;
done
cat >initramfs/init <<INIT
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t devtmpfs devices /dev
for module in $modules; do \$b insmod /modules/\$module.ko; done
while [ ! -b /dev/vda ]; do \$b usleep 20000; done
\$b mount -t ext4 -o rw /dev/vda /newroot
\$b mount --move /dev /newroot/dev
exec \$b switch_root /newroot /sbin/init
INIT
chmod +x initramfs/init
(cd initramfs && find . | cpio --quiet -o -H newc | gzip -1) >initrd

ssh-keygen -q -t ed25519 -N '' -C vm -f id
install -d -m 700 "$home/.ssh"
cp id.pub "$home/.ssh/authorized_keys"
rm -f "$root"/etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -C vm -f "$root/etc/ssh/ssh_host_ed25519_key"
echo "vm $(cut -d' ' -f1,2 "$root/etc/ssh/ssh_host_ed25519_key.pub")" >known_hosts
printf 'UseDNS no\nUsePAM no\nPasswordAuthentication no\nMaxSessions 100\n' >"$root/etc/ssh/sshd_config.d/vm.conf"

: >"$root/etc/machine-id"
: >"$root/etc/fstab"
echo vm >"$root/etc/hostname"
printf '[Match]\nName=eth*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n' \
    >"$root/etc/systemd/network/10-vm.network"
mkdir -p "$root/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultTimeoutStartSec=600\nDefaultDeviceTimeoutSec=600\n' >"$root/etc/systemd/system.conf.d/slow.conf" # no CPU of one's own
chroot "$root" systemctl --quiet enable systemd-networkd ssh
chroot "$root" systemctl --quiet mask getty@tty1.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_reap.service e2scrub_all.timer systemd-networkd-wait-online.service fstrim.timer

mke2fs -q -t ext4 -O ^has_journal -d "$root" disk.img 2G
rm -rf root kernel busybox initramfs ./*.deb sources.list proxies
