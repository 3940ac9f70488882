/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/tuple.h"

/*
 * The conntrack entry. One entry holds both directions of a connection; its key is the tuple as the pod
 * sees it. A reverse entry leads from another tuple of the same connection to that key.
 */

/* sl_ct_entry.flags. docs/dev/design/conntrack.md says what they mean. */
enum sl_ct_flag {
	SL_CT_REVERSE = 1 << 0,	      /* a reverse entry: "other" is the key of the entry */
	SL_CT_POD_OPENED = 1 << 1,    /* the pod sent the first packet */
	SL_CT_SNAT = 1 << 2,	      /* masqueraded: "other" is the tuple seen outside */
	SL_CT_DNAT = 1 << 3,	      /* by a hostPort: "other" is the tuple seen outside */
	SL_CT_DNAT_ANYADDR = 1 << 4,  /* ... one without hostIP */
	SL_CT_TX_SEEN_FIRST = 1 << 5, /* first hook of the pod's sending direction saw the tuple */
	SL_CT_TX_SEEN_LAST = 1 << 6,  /* last hook of that direction saw the same tuple */
	SL_CT_RX_SEEN_FIRST = 1 << 7,
	SL_CT_RX_SEEN_LAST = 1 << 8,
	SL_CT_REPLIED = 1 << 9,	 /* the end that did not open it has answered */
	SL_CT_ASSURED = 1 << 10, /* is in the map of assured connections */
	SL_CT_FIN_TX = 1 << 11,
	SL_CT_FIN_RX = 1 << 12,
	SL_CT_RST = 1 << 13,
	SL_CT_PEER_LOCAL = 1 << 14,	/* the remote end is a pod of this node */
	SL_CT_HAIRPIN = 1 << 15,	/* hairpin: "other" is the tuple in the stack */
	SL_CT_POD_SNAT = 1 << 16,	/* pod-side SNAT: "other" is the tuple the pod sees */
	SL_CT_WANTS_POD_SNAT = 1 << 17, /* its packets get pod-side SNAT at the pod that is asked */
	SL_CT_CLIENT_PORT = 1 << 18,	/* hostPort whose client has another port than its own; has a reverse entry */
	SL_CT_TRACKED = 1 << 19,	/* netfilter has an entry for it (netfilter.h) */
	SL_CT_BRIDGE = 1 << 20,		/* comes by an uplink that is a bridge, or on one (fastpath/again.h) */
	SL_CT_NF_NAT = 1 << 21,		/* translated by netfilter: "other" is the outermost tuple (nat/nf_nat.h) */
	SL_CT_OUT_BARE = 1 << 22,	/* out_ifindex has no Ethernet header */
	SL_CT_EGRESS_LATER =
		1 << 23, /* NetworkPolicy for its egress is asked by the last hook (policy/egress_later.h) */
};

/*
 * State of one connection, or a reverse entry (SL_CT_REVERSE). Times are clock_now()
 * (CLOCK_MONOTONIC, nanoseconds).
 */
struct sl_ct_entry {
	struct sl_tuple other;
	__u32 flags;	   /* enum sl_ct_flag */
	__u32 out_ifindex; /* uplink of the sending direction: masqueraded or confirmed there, 0 = none yet */
	__u64 created;
	__u64 last_seen;
	union {
		__u64 hostport_generation; /* SL_CT_DNAT: of the mapping that the connection belongs to */
		__u64 nf_conn;		   /* SL_CT_NF_NAT: address of netfilter's entry, see sl_nf_conn_lives() */
	};
	__u64 owner;	  /* attachment, see sl_endpoint.owner */
	__u64 rx_packets; /* toward the pod */
	__u64 rx_bytes;
	__u64 tx_packets; /* from the pod */
	__u64 tx_bytes;
	/* How packets of the sending direction leave by out_ifindex (route_cached_or_fib()). */
	__u64 nexthop_until; /* clock_now() at which it expires */
	__u32 relearn_at;    /* relearn_clock() at which both directions have to be confirmed again */
	__u16 nexthop_len;   /* longest packet that may leave this way, bytes; 0: the link addresses are not set */
	__u16 policy;	     /* id of the policy that admitted it (sl_dev_policy); 0 = none */
	__u8 nexthop_dst[6]; /* next hop's MAC */
	__u8 nexthop_src[6]; /* the uplink's */
	/* TCP's sequence space in host byte order, see tcp_seq.h. */
	__u32 tx_ack; /* what the pod expects next, as it last said; 0 = it said nothing yet */
	__u32 rx_end; /* end of what came in order behind tx_ack */
	__u32 tx_end; /* end of what the pod sent; 0 = it sent nothing yet */
	/* The same in packets that netfilter has seen, see netfilter.h; 0 = none yet. */
	__u32 nf_tx_end;  /* end of what the pod sent */
	__u32 nf_rx_end;  /* end of what came for the pod */
	__u32 nf_rst_seq; /* of a RST that is on its way through the stack with another number; 0 = none */
	__u32 nf_hash;	  /* SL_CT_NF_NAT: of the tuples of netfilter's entry */
};
_Static_assert(sizeof(struct sl_ct_entry) == 168, "sl_ct_entry is a map value: no hidden padding");

/* The index into sl_ct_counts. New ones go before SL_CT_COUNT_MAX: the numbers are part of the map layout. */
enum sl_ct_count {
	SL_CT_COUNT_CLIENT = 0, /* entries made for a connection that a client opens */
	SL_CT_COUNT_POD,	/* ... that a pod opens */
	SL_CT_COUNT_FIN,	/* entries whose connection ended by a FIN of each end */
	SL_CT_COUNT_RST,	/* ... by a RST */
	SL_CT_COUNT_EVICTED,	/* entries that gave their place to another attachment */
	SL_CT_COUNT_RESTORED,	/* entries that the LRU took, made again by their reverse entry */
	SL_CT_COUNT_MAX,
};

/* Entries of sl_ct_counts: more than there are, since a pinned map keeps its size. */
#define SL_CT_COUNTS_SIZE 16
_Static_assert(SL_CT_COUNT_MAX <= SL_CT_COUNTS_SIZE, "sl_ct_counts has an entry for every count");

/* Who opens the connections of a kind, how they are proven, and whether they are. Each kind of an attachment has a share of its own. */
enum sl_ct_kind {
	SL_CT_KIND_POD_OPENED = 1 << 0, /* else a client opened it */
	SL_CT_KIND_OTHER = 1 << 1,	/* not TCP */
	SL_CT_KIND_PENDING = 1 << 2,	/* not assured: its entry is in sl_ct_unassured */
};

/* A place in sl_ct or sl_ct_unassured. Its holder is the attachment that had it last; it is free if the entry has gone. */
struct sl_ct_place {
	struct bpf_spin_lock lock; /* for a change of the holder; a reader compares change before and after */
	__u16 change;		   /* counts the holders */
	__u16 kind;		   /* enum sl_ct_kind */
	__u64 owner;		   /* as sl_endpoint.owner */
	struct sl_tuple key;	   /* of the entry; proto 0: never held */
};
_Static_assert(sizeof(struct sl_ct_place) == 56, "sl_ct_place is a map value: no hidden padding");

/* Key of sl_ct_shares. */
struct sl_ct_share_key {
	__u64 owner;
	__u64 kind; /* enum sl_ct_kind */
};
_Static_assert(sizeof(struct sl_ct_share_key) == 16, "sl_ct_share_key is a map key: no hidden padding");

/* What an attachment holds of one kind. */
struct sl_ct_share {
	__s64 held;	     /* places, with those whose entry has gone since */
	__u64 refused_until; /* clock_now() until which it gets no other place */
};
_Static_assert(sizeof(struct sl_ct_share) == 16, "sl_ct_share is a map value: no hidden padding");

/* How many connections open: tells whether an entry of an idle connection can have been evicted. */
struct sl_ct_turnover {
	__u64 since; /* clock_now() at which the count began */
	__u64 count;
	__u64 busy_until; /* clock_now() until which entries may be missing */
};
_Static_assert(sizeof(struct sl_ct_turnover) == 24, "sl_ct_turnover is a map value: no hidden padding");

/* State of sl_ct_claim(). It is too big for the stack. */
struct sl_ct_search {
	struct sl_ct_share_key mine;
	struct sl_ct_share_key theirs; /* holder of the place that is looked at */
	struct sl_ct_share fresh;
	struct sl_tuple key; /* of the entry at that place */
	__s64 most;	     /* the most that a holder has */
	__u64 seen;	     /* last packet of the entry at the place that is looked at */
	__u64 oldest;	     /* ... at the place victim */
	__u64 now;
	__u32 hash;
	__u32 step;
	__u32 first; /* the places for the kind */
	__u32 count;
	__u32 index;  /* of the place that is looked at */
	__u32 victim; /* of a place whose holder has the most */
	__u32 change; /* sl_ct_place.change when it was read */
	__u32 pad;
};
