#!/bin/sh
# Before a removal, which dpkg calls `remove` and rpm 0. An upgrade restarts the daemon afterwards.
set -e
case "$1" in
    remove | 0)
        if [ -d /run/systemd/system ]; then
            systemctl --no-reload disable --now kube-ipvs.service
        fi
        ;;
esac
