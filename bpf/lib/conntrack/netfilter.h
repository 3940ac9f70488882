/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "conntrack_table.h"
#include "../packet/parse.h"

/*
 * What netfilter's own connection table knows of a connection (docs/design/fast-path.md, "Netfilter's table").
 *
 * Netfilter sees only the packets that take the slow path. A stateful firewall decides by its entry,
 * so the entry has to be one that lives on while the fast path carries the connection:
 *
 * - TCP: established, and all data acknowledged that netfilter has seen. Otherwise the entry lives
 *   for 300 s instead of five days (IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED). So a connection gets on the
 *   fast path behind such a packet, and its end takes the slow path.
 * - All others: older than two seconds, which makes of 30 s 120 s (nf_conntrack_udp_packet()).
 *
 * The packets of the last hooks have passed netfilter, so these functions belong there.
 */

/* Bits of sk_buff._nfct that are no part of the pointer (NFCT_PTRMASK, include/linux/skbuff.h). */
#define SL_NFCT_INFO_MASK 7UL
/*
 * Distance from the last byte that netfilter has seen behind which a segment is out of every window
 * that it can know: it has seen no acknowledgment of what came between. Ordinary windows are
 * smaller (net.ipv4.tcp_rmem).
 */
#define SL_NF_WINDOW (4 << 20)
/* How often netfilter sees a connection that is not TCP: each second, in units of cfg_relearn. */
#define SL_NF_RELEARN ((__u32)(NSEC_PER_SEC >> 20))
/* Netfilter makes the life of an entry longer when it is that old (stream_ts), with a tick of the coarse clock to spare. */
#define SL_NF_STREAM_AGE (2 * NSEC_PER_SEC + 20 * NSEC_PER_MSEC)

/*
 * Has netfilter an entry for the packet? No where nothing tracks, and where a rule says NOTRACK.
 * Yes where the kernel does not let us read it. Kernel 5.5 (bpf_probe_read_kernel).
 */
static __always_inline bool nf_tracks(struct __sk_buff *skb)
{
	unsigned long nfct = 0;

	/* The context of a tc program is the packet itself (struct sk_buff). */
	if (!cfg_nfct_offset || bpf_probe_read_kernel(&nfct, sizeof(nfct), (void *)skb + cfg_nfct_offset))
		return true;
	return nfct & ~SL_NFCT_INFO_MASK;
}

/*
 * Notes a TCP packet that netfilter has seen, as tcp_in_window() does (net/netfilter/nf_conntrack_proto_tcp.c), and returns
 * the entry's new flags. A direction counts as seen when it has acknowledged all that netfilter knows of the other one; new
 * data has to be acknowledged before both count again.
 *
 * A packet that is out of netfilter's window leaves its entry as it is, since netfilter is liberal
 * about windows (loader/internal/programs/relearn.go). That is so when the fast path has carried data:
 * such a packet acknowledges what netfilter has not seen, or is far beyond.
 */
static __always_inline __u32 nf_note_tcp(struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir, __u32 flags)
{
	__u32 seen = dir == SL_TX ? SL_CT_TX_SEEN_LAST : SL_CT_RX_SEEN_LAST;
	__u32 *mine = dir == SL_TX ? &ct->nf_tx_end : &ct->nf_rx_end;
	__u32 *other = dir == SL_TX ? &ct->nf_rx_end : &ct->nf_tx_end;
	__u32 end = p->seq + p->seq_len;
	__s32 unseen;

	if (unlikely(p->tcp_flags & SL_TCP_SYN)) {
		if (pkt_is_syn(p) ? *mine && *other : dir == SL_RX && p->ack != *other)
			return flags; /* nor does netfilter take such a SYN for the begin of a connection */
		*mine = end;
		if (pkt_is_syn(p))
			return flags & ~SL_CT_SEEN_LAST;
		*other = p->ack;
		return (flags & ~SL_CT_SEEN_LAST) | seen;
	}
	unseen = *other ? (__s32)(p->ack - *other) : -1;
	if (unseen > 0 || (*mine && (__s32)(p->seq - *mine) > SL_NF_WINDOW))
		return flags | seen;
	/* A closed window shortens the life of the entry too. */
	if (!unseen && !p->zero_window)
		flags |= seen;
	if (!*mine || (__s32)(end - *mine) > 0) {
		*mine = end;
		flags &= ~(SL_CT_SEEN_LAST ^ seen);
	}
	return flags;
}

/* Notes a packet at the last hook of its direction, of a connection whose first hook saw it under the same tuple. */
static __always_inline void ct_passed_stack(struct __sk_buff *skb, struct sl_ct_entry *ct, const struct sl_pkt *p,
					    enum sl_dir dir, __u64 now)
{
	__u32 seen = dir == SL_TX ? SL_CT_TX_SEEN_LAST : SL_CT_RX_SEEN_LAST;
	__u32 flags = ct->flags;

	if (!nf_tracks(skb)) {
		flags |= seen;
	} else {
		flags |= SL_CT_TRACKED;
		if (p->tcp_flags)
			flags = nf_note_tcp(ct, p, dir, flags);
		else if (now - ct->created >= SL_NF_STREAM_AGE)
			flags |= seen;
	}
	if (flags != ct->flags)
		ct->flags = flags;
}

/*
 * Would netfilter call the RST invalid? It compares the number with an acknowledgment that it saw
 * before the fast path, which may be half of the sequence space away.
 */
static __always_inline bool nf_refuses_rst(const struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir)
{
	__u64 bytes = dir == SL_TX ? ct->tx_bytes : ct->rx_bytes;
	__u32 end = dir == SL_TX ? ct->nf_tx_end : ct->nf_rx_end;

	return bytes >> 31 && (__s32)(p->seq - end) < 0;
}

/*
 * Must netfilter see the packet? It must see how a connection ends that it tracks, or the entry
 * stays, and counts (ct count, xt_connlimit). A connection that one end has closed stays with it.
 */
static __always_inline bool nf_must_see(const struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir)
{
	if (!(ct->flags & SL_CT_TRACKED) || !p->tcp_flags)
		return false;
	if (!cfg_tcp_liberal)
		return true;
	if (unlikely(p->tcp_flags & SL_TCP_RST))
		return !nf_refuses_rst(ct, p, dir);
	return (p->tcp_flags & SL_TCP_FIN) || (ct->flags & SL_CT_CLOSING);
}
