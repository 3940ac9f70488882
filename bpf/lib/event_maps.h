/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "event_types.h"

/* Dropped packets, for one reader at a time. Written by programs, and only while somebody reads. Kernel 5.8. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_events SEC(".maps");

/* Written by the reader. Programs read it whole or half: an event more or less. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_event_wish);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_event_wish SEC(".maps");

/* Each program counts on its own CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_event_cpu);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_event_cpu SEC(".maps");

/*
 * Packets dropped, by device, endpoint and reason, but for the last ones of each CPU (sl_event_cpu.run). Entries are made by
 * the programs, each counts on its own CPU; those of devices that have gone are the first to be pushed out.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct sl_drop_key);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_dev_drops SEC(".maps");
