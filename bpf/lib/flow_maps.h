/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "flow_types.h"

/* Sizes are defaults; the loader overrides them from the node's configuration. */

/* Flows whose two ends have proven to be there. Written by all programs on all CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct sl_tuple);
	__type(value, struct sl_flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_flows SEC(".maps");

/* Half-open and unanswered flows, apart so that a flood only evicts its own kind. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct sl_tuple);
	__type(value, struct sl_flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_flows_new SEC(".maps");
