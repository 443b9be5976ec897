#!/bin/sh
# After an installation or an upgrade: dpkg passes `configure`, rpm the number of installed versions. Nothing is started
# that did not run: the first sync removes virtual servers that no Service wants, which is the operator's decision.
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
