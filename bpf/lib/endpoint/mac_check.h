/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint_types.h"

/*
 * The source MACs of pods with macspoofchk.
 */

/* By ifindex of the host veth. Written by the loader only, before the program is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_pod_mac);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_pod_macs SEC(".maps");
