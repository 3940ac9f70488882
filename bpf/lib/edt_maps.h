/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "edt_types.h"

/*
 * Limited directions by number, which the filter carries as its class. The loader
 * makes and removes entries; the program changes clocks and counters from all CPUs,
 * under the entry's lock.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_edt);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_edt_limits SEC(".maps");

/* Networks that a limit is for, or not for. Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_edt_net);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_edt_nets SEC(".maps");
