#!/bin/sh
# After an installation or an upgrade: dpkg says `configure`, rpm how many versions there are then. Nothing is started that
# did not run: the first sync removes virtual servers that no Service wants, which somebody has to decide.
case "$1" in
    configure | [0-9]*) ;;
    *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    systemd-tmpfiles --create kube-ipvs.conf || true
    systemctl daemon-reload || true
    systemctl try-restart kube-ipvs.service || echo "kube-ipvs did not restart: journalctl -u kube-ipvs" >&2
fi
exit 0
