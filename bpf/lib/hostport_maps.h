/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "hostport_types.h"

/* Published ports. Written by the loader only; one update replaces the owner atomically. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_hostport_key);
	__type(value, struct sl_hostport);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_hostports SEC(".maps");

/* Who may talk to published ports that have a list. Written by the loader only; a list is whole before an entry names it. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_source);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_sources SEC(".maps");

/*
 * Source ports that masquerade must leave alone (net.ipv4.ip_local_reserved_ports):
 * one bit each, bit (port % 64) of element port / 64. Written by the loader only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ports_kept SEC(".maps");
