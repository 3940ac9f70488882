/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "verdict.h"

/* Packets dropped, by reason. Each program counts on its own CPU. Larger than the reasons are: a pinned map keeps its size. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_DROP_ROOM);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_drops SEC(".maps");
