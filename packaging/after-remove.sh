#!/bin/sh
# After a removal. What the daemon programmed stays in service: `kube-ipvs cleanup` before the removal removes it.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
exit 0
