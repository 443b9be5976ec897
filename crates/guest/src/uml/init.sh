#!/bin/sh
# PID 1 of a User Mode Linux guest, on the host's root file system, read-only. Puts an overlay over it
# that is thrown away, goes on inside, runs the command with its output going to files on the host, and
# powers the guest off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LANG=C.UTF-8
if [ "$1" != inside ]; then
    mount -t proc proc /proc
    read -r line </proc/cmdline
    for word in $line; do
        case $word in xtask.job=*) job=${word#xtask.job=} ;; esac
    done
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
    root=/mnt/root
    mount -t proc proc $root/proc
    mount -t sysfs sysfs $root/sys
    mount -t devtmpfs devtmpfs $root/dev
    for directory in $root/run $root/mnt; do mount -t tmpfs tmpfs $directory; done
    mount -t hostfs -o "$job" none "$root$job"
    exec chroot $root /bin/sh "$job/init" inside "$job"
fi

job=$2
. "$job/settings"   # busybox, share
mkdir -p /dev/pts /dev/shm /run/netns /run/lock
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ln -sfn /proc/self/fd /dev/fd
mount -t cgroup2 cgroup2 /sys/fs/cgroup
[ -n "$share" ] && mount -t hostfs -o "$share" none "$share"
hostname vm
ip link set lo up
setsid /bin/sh "$job/command" </dev/null >"$job/stdout" 2>"$job/stderr"
echo $? >"$job/exit"
sync
exec "$busybox" poweroff -f
