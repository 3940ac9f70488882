/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * The tables of NetworkPolicy: which class an address is of, and what each class may do. All of them
 * have a generation in their keys, so that the agent can build all tables anew beside those in force.
 */

/*
 * The ports for which the NetworkPolicies of a pod ask the same, in one direction. The first segment that fits a packet decides.
 * The last one of a direction fits every packet.
 */
struct sl_np_segment {
	__u16 port_min; /* of the end that is asked, host byte order */
	__u16 port_max;
	__u16 point; /* the number of the bit that each class of peers has for the question */
	__u8 proto;
	__u8 proto_mask; /* 0 = any protocol, and packets without ports too; else 255 */
};
_Static_assert(sizeof(struct sl_np_segment) == 8, "sl_np_segment is in a map value: no hidden padding");

/* Segments in both directions together. */
#define SL_NP_SEGMENTS 128

/* Points that ask nothing about the peer: no class has the first one, and each has the second. */
#define SL_NP_POINT_DENY 0
#define SL_NP_POINT_ACCEPT 1

/* The set of a pod whose NetworkPolicies are not known yet, or do not fit. It admits nothing. */
#define SL_NP_SET_CLOSED 1

/* What the NetworkPolicies of pods mean that have them in common. It never changes. */
struct sl_np_policy {
	__u64 set; /* a hash of the meaning, never 0 */
	__u32 generation;
	__u16 ingress_count; /* segments[0..ingress_count) are for connections toward the pod; 0 = all are admitted */
	__u16 egress_count;  /* the next ones for connections the pod opens */
	struct sl_np_segment segments[SL_NP_SEGMENTS];
};
_Static_assert(sizeof(struct sl_np_policy) == 16 + 8 * SL_NP_SEGMENTS,
	       "sl_np_policy is a map value: no hidden padding");

/* Key of sl_np_sets. */
struct sl_np_set {
	__u64 set;
	__u32 generation;
	__u32 pad;
};
_Static_assert(sizeof(struct sl_np_set) == 16, "sl_np_set is a map key: no hidden padding");

/* Key of sl_np_peers. */
struct sl_np_addr {
	__u8 ip[16]; /* v4-mapped for IPv4 */
	__u32 generation;
};
_Static_assert(sizeof(struct sl_np_addr) == 20, "sl_np_addr is a map key: no hidden padding");

struct sl_np_peer {
	__u32 class;
	__u32 owner; /* the pod that has the address, by a hash of its UID; 0 = a node */
};
_Static_assert(sizeof(struct sl_np_peer) == 8, "sl_np_peer is a map value: no hidden padding");

/* LPM key of sl_np_cidrs. */
struct sl_np_cidr {
	__u32 prefix_len; /* 32-160, host byte order: 32 for the generation, then as sl_cidr.prefix_len */
	__u32 generation;
	__u8 ip[16];
};
_Static_assert(sizeof(struct sl_np_cidr) == 24, "sl_np_cidr is a map key: no hidden padding");

/* Key of sl_np_bits. */
struct sl_np_chunk {
	__u32 class;
	__u32 generation;
	__u32 chunk; /* point / SL_NP_CHUNK_BITS */
};
_Static_assert(sizeof(struct sl_np_chunk) == 12, "sl_np_chunk is a map key: no hidden padding");

union sl_np_key {
	struct sl_np_addr addr;
	struct sl_np_cidr cidr;
	struct sl_np_chunk chunk;
};

#define SL_NP_CHUNK_BITS 512

/* The verdicts of a class, from the lowest bit of the first word on. */
struct sl_np_bits {
	__u64 words[SL_NP_CHUNK_BITS / 64];
};

/* What is known of a pod that runs on this node, or will. */
struct sl_np_pod {
	__u64 set; /* key in sl_np_sets; 0 = nothing restricts the pod */
	__u32 generation;
	__u32 pad;
};
_Static_assert(sizeof(struct sl_np_pod) == 16, "sl_np_pod is a map value: no hidden padding");

/* A device under NetworkPolicy. */
struct sl_np_device {
	__u64 pod;   /* a hash of its UID */
	__u64 owner; /* as sl_endpoint.owner */
	__u64 since; /* when the device was closed because nothing was known of its pod, ns since boot; 0 = it is not closed */
	__u32 group; /* as sl_dev_policy.group */
	__u32 pad;
};
_Static_assert(sizeof(struct sl_np_device) == 32, "sl_np_device is a map value: no hidden padding");
