#!/bin/sh
# After an installation or an upgrade. Nothing is started that did not run: the first sync removes virtual servers that no
# Service wants, which somebody has to decide.
set -e
if [ -d /run/systemd/system ]; then
    systemd-tmpfiles --create kube-ipvs.conf
    systemctl daemon-reload
    systemctl try-restart kube-ipvs.service
fi
