/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "flow_types.h"

/*
 * What the node's own sockets have sent from published ports to peers that they name with each datagram: tuple (local = the
 * node's end) to the clock_now() of the last datagram of either direction.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct sl_tuple);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_sent SEC(".maps");
