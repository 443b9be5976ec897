#!/bin/sh
# PID 1 of a QEMU guest: makes a system of the initramfs, runs /xtask/command with its stdout, stderr
# and exit code going out through one virtio port each, and powers the guest off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/xtask/applets
export HOME=/root TERM=dumb LANG=C.UTF-8
. /xtask/settings   # busybox, modprobe, share, address

# The small tools come last in PATH: a real ip or nc is preferred to BusyBox's.
"$busybox" mkdir -p /proc /sys /dev /run /tmp /root /etc /xtask/applets
"$busybox" mount -t proc proc /proc
"$busybox" --install -s /xtask/applets
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr
for directory in /dev/shm /run; do mount -t tmpfs tmpfs "$directory"; done
chmod 1777 /tmp
mkdir -p /run/netns /run/lock
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Who asks the kernel for a module by netlink has it loaded by this program.
echo "$modprobe" >/proc/sys/kernel/modprobe
hostname vm
ip link set lo up

modprobe -a virtio_pci virtio_console virtio_rng 2>/dev/null
# Loaded on demand these two can hang the kernel for good: they wait for the end of a network namespace, which
# waits for IPVS, which waits for them (see docs/evidence/kernel.md). Tests make and end namespaces all the time.
modprobe -a ip_vs_lblc ip_vs_lblcr 2>/dev/null
# Prints the device of the virtio port named $1.
port() {
    for directory in /sys/class/virtio-ports/*; do
        [ "$(cat "$directory/name" 2>/dev/null)" = "$1" ] && echo "/dev/${directory##*/}"
    done
}
tries=0
until [ -n "$(port exit)" ] && [ -n "$(port share)" ] || [ $tries = 100 ]; do
    tries=$((tries + 1)); sleep 0.05
done

if [ -n "$address" ]; then
    modprobe virtio_net 2>/dev/null
    for nic in /sys/class/net/e*; do
        ip address add "$address" dev "${nic##*/}" && ip link set "${nic##*/}" up
    done
fi

mkfifo /xtask/stdout /xtask/stderr
cat /xtask/stdout >"$(port stdout)" & readers=$!
cat /xtask/stderr >"$(port stderr)" & readers="$readers $!"
setsid /bin/sh /xtask/command </dev/null >/xtask/stdout 2>/xtask/stderr
code=$?
# What the command left running may hold the pipes open: a second for the last words, no more.
(sleep 1; kill $readers) 2>/dev/null &
wait $readers
[ -n "$share" ] && tar -C "$share" -cf - . >"$(port share)"
echo $code >"$(port exit)"
poweroff -f
