#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# postrm of the deb. A purge leaves what belongs to running pods: /run/sluice, the programs in the kernel, and addresses in use.
set -e

if [ "$1" = purge ]; then
	rm -f /var/lib/sluice/plugins
	rmdir /var/lib/sluice 2>/dev/null || :
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
fi
