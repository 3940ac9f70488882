/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/* A datagram in fragments, at one hook. */
struct sl_frag_key {
	__u8 local[16];
	__u8 remote[16];
	__be32 id;
	__u8 proto; /* IPv6: the fragment header's number, since only first fragments must name the real one (RFC 8200 4.5) */
	__u8 dir; /* enum sl_dir; at a pod's device plus 2 */
	__u8 pad[2];
};
_Static_assert(sizeof(struct sl_frag_key) == 40, "sl_frag_key is a map key: no hidden padding");

/* What became of its first fragment. */
struct sl_frag {
	__u64 until; /* clock_now() from which on the entry does not exist */
	__u8 to[16]; /* the address that took the local one's place, at a pod's device the remote one's; the same one for a flow without translation */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct sl_frag_key);
	__type(value, struct sl_frag);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_frags SEC(".maps");
