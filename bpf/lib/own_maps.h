/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "own_types.h"

/* Devices with programs inside a pod's namespace, by their number. Written by the loader only; one update replaces the value. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_own_device);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_own_devices SEC(".maps");
