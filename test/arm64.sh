#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# arm64.sh runs a command that may start programs for arm64, by QEMU's user emulation: "test/arm64.sh go test ./pkg/policy".
# The kernel learns of the emulator in a user namespace of the command's own (Linux 6.7 or later), so nothing on the machine changes.
set -euo pipefail

emulator=$(command -v qemu-aarch64-static)
if [ "${1:-}" != --inside ]; then
	exec unshare --user --map-root-user --mount "$0" --inside "$@"
fi
shift
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc ||
	{ echo "arm64.sh: no binfmt_misc in a user namespace: Linux 6.7 or later has it" >&2; exit 1; }
# The first bytes of an ELF file for aarch64, and which bits of them count: elf(5).
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf ':sluice-arm64:M::%s:%s:%s:F' "$magic" "$mask" "$emulator" >/proc/sys/fs/binfmt_misc/register
export GOARCH=arm64 CGO_ENABLED=0
exec "$@"
