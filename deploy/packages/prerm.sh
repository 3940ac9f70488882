#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prerm of the deb: at a removal the plugins go, and files of other packages come back. An upgrade leaves all in place.
set -e

if [ "$1" = remove ]; then
	if [ -d /run/systemd/system ]; then
		systemctl disable --now @UNITS@ || :
	fi
	/usr/lib/sluice/plugin-files remove
fi
