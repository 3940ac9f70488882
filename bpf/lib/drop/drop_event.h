/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "drop_event_types.h"
#include "drop_reasons.h"
#include "../endpoint/podns_device_types.h"

/*
 * Counts drops, and reports them to a reader ("sluice monitor") while there is one, no more than that
 * reader can take. Every object that drops defines SL_PROGRAM, its enum sl_program, before its headers.
 */

/*
 * Dropped packets, for one reader at a time. Programs write only while a reader holds the lease.
 * Kernel 5.8.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_drop_events SEC(".maps");

/*
 * The reader's lease, written by the reader. A program that reads half a value costs one event more
 * or less.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_event_lease);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_event_lease SEC(".maps");

/* State of the rate limit. Each program uses that of its own CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_event_state);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_event_state SEC(".maps");

/*
 * Dropped packets by device, endpoint and reason, without the last ones of each CPU
 * (sl_event_state.run). Programs make the entries, and count on their own CPU. Entries of devices
 * that have gone are evicted first.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct sl_drop_key);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_drops_by_dev SEC(".maps");

/*
 * Dropped packets by reason and direction. Each program counts on its own CPU. The map is larger than the enum: a
 * pinned map keeps its size.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_DROP_MAP_SIZE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_drop_reasons SEC(".maps");

/* Programs that do not drop have no number. */
#ifndef SL_PROGRAM
#define SL_PROGRAM SL_PROGRAM_NONE
#endif

/* The direction of what the program sees. SL_PROGRAM_EDT sees both, and says it for each packet. */
#define SL_DROP_DIRECTION                                                                                              \
	(SL_PROGRAM == SL_PROGRAM_FROM_POD || SL_PROGRAM == SL_PROGRAM_TO_UPLINK ||                                    \
			 SL_PROGRAM == SL_PROGRAM_NS_EGRESS || SL_PROGRAM == SL_PROGRAM_MAC_CHECK ||                   \
			 SL_PROGRAM == SL_PROGRAM_PARENT                                                               \
		 ? SL_DROP_FROM_PODS                                                                                   \
		 : SL_DROP_TO_PODS)

/* Adds the drops that the CPU has counted to their counter. */
static __always_inline void drop_flush(struct sl_event_state *cpu)
{
	__u64 *n;

	if (!cpu->run)
		return;
	n = bpf_map_lookup_elem(&sl_drops_by_dev, &cpu->key);
	if (n)
		*n += cpu->run;
	else /* BPF_ANY: if another CPU is faster, this CPU's share is still 0 */
		bpf_map_update_elem(&sl_drops_by_dev, &cpu->key, &cpu->run, BPF_ANY);
	cpu->run = 0;
}

/*
 * Counts a drop, and notes in the CPU's state where it happened, to which endpoint, and why. Drops
 * come in floods of the same kind: they are counted in the CPU's state until another kind comes,
 * without a lookup in a large map. Returns NULL for the verifier only.
 * index: the reason, with its enum sl_drop_direction
 */
static __always_inline struct sl_event_state *drop_count(__u32 device, __u32 endpoint, __u32 index)
{
	__u32 zero = 0, reason = index & SL_DROP_REASON_MASK;
	struct sl_event_state *cpu;
	__u64 *n;

	cpu = bpf_map_lookup_elem(&sl_event_state, &zero);
	if (!cpu)
		return NULL;
	if (cpu->key.device != device || cpu->key.endpoint != endpoint || cpu->key.reason != reason) {
		drop_flush(cpu);
		cpu->key.device = device;
		cpu->key.endpoint = endpoint;
		cpu->key.reason = reason;
	}
	cpu->run++;
	cpu->owner = 0;
	n = bpf_map_lookup_elem(&sl_drop_reasons, &index);
	if (n)
		(*n)++;
	return cpu;
}

/*
 * Reserves an event about the drop that drop_count() noted. NULL: there is no reader, or too many
 * packets are dropped.
 */
static __always_inline struct sl_event *event_reserve(struct sl_event_state *cpu)
{
	struct sl_event_lease *w;
	struct sl_event *e;

	w = bpf_map_lookup_elem(&sl_event_lease, &cpu->zero);
	if (!w || !w->until)
		return NULL;
	cpu->now = bpf_ktime_get_ns();
	if (cpu->now >= w->until)
		return NULL;
	if (cpu->now - cpu->window >= w->window) {
		cpu->window = cpu->now;
		cpu->left = w->burst;
	}
	e = cpu->left ? bpf_ringbuf_reserve(&sl_drop_events, sizeof(*e), 0) : NULL;
	if (!e) {
		cpu->lost++;
		return NULL;
	}
	cpu->left--;
	e->time = cpu->now;
	e->owner = cpu->owner;
	e->endpoint = cpu->key.endpoint;
	e->device = cpu->key.device;
	e->reason = (__u16)cpu->key.reason;
	e->program = SL_PROGRAM;
	return e;
}
