#!/bin/sh
# Before a removal: dpkg passes `remove`, rpm 0. An upgrade restarts the daemon afterwards.
case "$1" in
    remove | 0)
        systemctl --no-reload disable kube-ipvs.service || true
        if [ -d /run/systemd/system ]; then
            systemctl stop kube-ipvs.service || true
        fi
        ;;
esac
exit 0
