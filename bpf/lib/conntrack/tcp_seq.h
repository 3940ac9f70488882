/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "conntrack_types.h"
#include "../packet/parse.h"

/*
 * TCP sequence numbers: does a packet continue its connection? RST and FIN count only then (RFC 5961
 * 3.2, nf_conntrack_tcp_packet()). So a third party needs more than the tuple to end a connection.
 *
 * The pod's own packets are the measure: a third party cannot send them. The other end goes on at
 * tx_ack, or at rx_end if data is not acknowledged yet. This needs no window, and so no window
 * scale. An entry that was made in the middle of a connection is exact after one packet of the pod.
 * Before that no packet from outside ends the connection.
 */

/* No receive window is longer (RFC 7323 2.3). A longer distance means that rx_end is behind tx_ack. */
#define SL_TCP_MAX_WINDOW (1U << 30)
/* The pod's RST may answer an acknowledgment that is this old, bytes. */
#define SL_TCP_RST_BACK 0xffffU

/*
 * Notes the pod's SYN, and returns the entry's new flags. With another number than before, the pod has
 * opened or accepted a new connection on the tuple: nothing of the old one counts.
 */
static __always_inline __u32 tcp_seq_open(struct sl_ct_entry *ct, const struct sl_pkt *p, __u32 flags, __u64 now)
{
	__u32 end = p->seq + p->seq_len;

	if (ct->tx_end && ct->tx_end != end) {
		ct->created = now;
		ct->rx_packets = 0;
		ct->rx_bytes = 0;
		ct->tx_packets = 0;
		ct->tx_bytes = 0;
		ct->tx_ack = 0;
		flags &= ~(SL_CT_FIN_TX | SL_CT_FIN_RX | SL_CT_RST);
	}
	ct->tx_end = end;
	if ((p->tcp_flags & SL_TCP_ACK) && !ct->tx_ack) {
		ct->tx_ack = p->ack;
		ct->rx_end = p->ack;
	}
	return flags;
}

/*
 * Notes a packet of the pod, and returns the entry's new flags. A RST must be near the last byte
 * sent: a socket that is not connected yet answers a false acknowledgment with a RST at that
 * number (RFC 9293 3.10.7.3).
 */
static __always_inline __u32 tcp_seq_tx(struct sl_ct_entry *ct, const struct sl_pkt *p, __u32 flags, __u64 now)
{
	__u32 end = p->seq + p->seq_len, tx_end = ct->tx_end;

	if (unlikely(p->tcp_flags & (SL_TCP_RST | SL_TCP_SYN))) {
		if (p->tcp_flags & SL_TCP_SYN)
			return tcp_seq_open(ct, p, flags, now);
		return !tx_end || tx_end - p->seq <= SL_TCP_RST_BACK ? flags | SL_CT_RST : flags;
	}
	if (likely(p->tcp_flags & SL_TCP_ACK)) {
		if (unlikely(!ct->tx_ack))
			ct->rx_end = p->ack;
		ct->tx_ack = p->ack;
		flags &= ~SL_CT_RST; /* the pod did not accept the RST */
	}
	if ((__s32)(end - tx_end) > 0 || unlikely(!tx_end)) {
		ct->tx_end = end;
		flags &= ~SL_CT_FIN_TX; /* the connection goes on */
	}
	return p->tcp_flags & SL_TCP_FIN ? flags | SL_CT_FIN_TX : flags;
}

/*
 * Notes a packet toward the pod, and returns the entry's new flags. *in_order: the packet continues
 * the connection, or it answers the pod's SYN.
 */
static __always_inline __u32 tcp_seq_rx(struct sl_ct_entry *ct, const struct sl_pkt *p, __u32 flags, bool *in_order)
{
	__u32 tx_ack = ct->tx_ack, span = ct->rx_end - tx_ack, off = p->seq - tx_ack;

	*in_order = false;
	/* The pod has not acknowledged anything, or both ends open at once (RFC 9293 3.5). */
	if (unlikely(!tx_ack || (p->tcp_flags & SL_TCP_SYN))) {
		*in_order = (p->tcp_flags & SL_TCP_ACK) && ct->tx_end && p->ack == ct->tx_end;
		return *in_order && (p->tcp_flags & SL_TCP_RST) ? flags | SL_CT_RST : flags;
	}
	if (unlikely(span > SL_TCP_MAX_WINDOW))
		span = 0;
	if (unlikely(off > span))
		return flags;
	/* Not between the two: the pod questions such a RST, and the answer has tx_ack. */
	if (unlikely(p->tcp_flags & SL_TCP_RST))
		return !off || off == span ? flags | SL_CT_RST : flags;
	*in_order = true;
	flags &= ~SL_CT_RST;
	if (off + p->seq_len > span && (__s32)p->seq_len > 0) {
		ct->rx_end = p->seq + p->seq_len;
		flags &= ~SL_CT_FIN_RX; /* the connection goes on */
	}
	return p->tcp_flags & SL_TCP_FIN ? flags | SL_CT_FIN_RX : flags;
}

/* Notes a packet of the pod that sl_from_pod saw under another tuple, or not at all. */
static __always_inline void tcp_seq_note_tx(struct sl_ct_entry *ct, const struct sl_pkt *p)
{
	__u32 flags;

	if (!p->tcp_flags)
		return;
	flags = tcp_seq_tx(ct, p, ct->flags, ct->last_seen);
	if (flags != ct->flags)
		ct->flags = flags;
}
