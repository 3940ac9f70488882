#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# postinst of the deb: the plugins come, or come again after another package touched their directory.
set -e

case $1 in
configure | triggered | abort-upgrade | abort-remove | abort-deconfigure)
	/usr/lib/sluice/plugin-files install
	;;
esac
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# Only what runs: the package starts and enables nothing by itself.
	systemctl try-restart @SERVICES@ || :
fi
