/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "conntrack_table.h"
#include "../packet/parse.h"

/*
 * What netfilter's own connection table knows of a connection (docs/dev/design/fast-path.md, "Netfilter's table").
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

/* What netfilter has to do with a packet. */
enum sl_nf {
	SL_NF_UNTRACKED, /* nothing: nothing tracks here, or a rule says NOTRACK */
	SL_NF_YOUNG,	 /* it has an entry that is not assured: the connection opens, or the entry is a new one */
	SL_NF_ASSURED,	 /* it has an assured one */
	SL_NF_HELPED,	 /* it has one with a helper that reads every packet */
};

/* Has a helper of netfilter a port of its own there (enum of net/netfilter/nf_conntrack_*.c)? For kernels that do not let us look. */
static __always_inline bool nf_helper_port(__u8 proto, __be16 port)
{
	switch (bpf_ntohs(port)) {
	case 21:   /* ftp */
	case 1720: /* h323 */
	case 1723: /* pptp */
	case 6566: /* sane */
	case 6667: /* irc */
		return proto == IPPROTO_TCP;
	case 69:    /* tftp */
	case 137:   /* netbios-ns */
	case 161:   /* snmp */
	case 1719:  /* h323 */
	case 10080: /* amanda */
		return proto == IPPROTO_UDP;
	case 5060: /* sip */
		return true;
	}
	return false;
}

/* Has the entry at nfct (struct nf_conn) a helper? The extension of helpers is the first one (NF_CT_EXT_HELPER). */
static __always_inline bool nf_has_helper(unsigned long nfct, const struct sl_tuple *t)
{
	unsigned long ext = 0;
	__u8 offset = 0;

	if (!cfg_nf_ext_offset)
		return nf_helper_port(t->proto, t->local_port) || nf_helper_port(t->proto, t->remote_port);
	return !bpf_probe_read_kernel(&ext, sizeof(ext), (void *)(nfct + cfg_nf_ext_offset)) && ext &&
	       !bpf_probe_read_kernel(&offset, sizeof(offset), (void *)ext) && offset;
}

/* IPS_ASSURED (include/uapi/linux/netfilter/nf_conntrack_common.h): both ends are there. */
#define SL_IPS_ASSURED (1UL << 2)

static __always_inline bool nf_is_assured(unsigned long nfct)
{
	unsigned long status = SL_IPS_ASSURED;

	if (cfg_nf_status_offset)
		bpf_probe_read_kernel(&status, sizeof(status), (void *)(nfct + cfg_nf_status_offset));
	return status & SL_IPS_ASSURED;
}

/*
 * What netfilter has to do with a packet behind the stack. Where the kernel does not let us read
 * it, it counts as tracked. A function of its own: the verifier follows it once. Kernel 5.5
 * (bpf_probe_read_kernel).
 */
static __noinline enum sl_nf sl_nf_of(struct __sk_buff *skb, const struct sl_tuple *t)
{
	unsigned long nfct = 0;

	/* The context of a tc program is the packet itself (struct sk_buff). */
	if (cfg_nfct_offset && bpf_probe_read_kernel(&nfct, sizeof(nfct), (void *)skb + cfg_nfct_offset))
		return SL_NF_ASSURED;
	nfct &= ~SL_NFCT_INFO_MASK;
	if (cfg_nfct_offset && !nfct)
		return SL_NF_UNTRACKED;
	if (nf_has_helper(nfct, t))
		return SL_NF_HELPED;
	return nf_is_assured(nfct) ? SL_NF_ASSURED : SL_NF_YOUNG;
}

/*
 * Notes a TCP packet that netfilter has seen, as tcp_in_window() does (net/netfilter/nf_conntrack_proto_tcp.c), and returns
 * the entry's new flags. A direction counts as seen when it has acknowledged all that netfilter knows of the other one; new
 * data has to be acknowledged before both count again.
 *
 * A packet that is out of netfilter's window leaves its entry as it is, since netfilter is liberal
 * about windows (loader/internal/programs/relearn.go). That is so when the fast path has carried data:
 * such a packet acknowledges what netfilter has not seen, or is far beyond. young: the entry is not assured. In the middle of a
 * connection it is another one than before (conntrack -D), which has seen nothing yet.
 */
static __always_inline __u32 nf_note_tcp(struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir, __u32 flags,
					 bool young)
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
	if (unlikely(young)) {
		*mine = 0;
		*other = 0;
		flags &= ~SL_CT_SEEN_LAST;
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

/*
 * The RST of a connection on the fast path. Netfilter takes a connection for closed if the number is the one that it saw
 * acknowledged last; any other leaves the entry established, or is invalid. So netfilter gets that number: the first hook
 * writes it, and the last hook writes the sender's back. Only for a RST that is in place for us (tcp_seq.h), so nobody can close
 * netfilter's entry blindly.
 */
static __always_inline bool nf_is_rst_of_fast(const struct sl_ct_entry *ct, const struct sl_pkt *p)
{
	const __u32 all = SL_CT_TRACKED | SL_CT_RST | SL_CT_SEEN_LAST;

	return unlikely(p->tcp_flags & SL_TCP_RST) && (ct->flags & all) == all;
}

#define SL_TCP_SEQ_OFF 4
#define SL_TCP_CSUM_OFF 16

/* Writes another sequence number into a TCP packet. Returns 0, or an error of the kernel. */
static __noinline int sl_nf_set_seq(struct __sk_buff *skb, const struct sl_pkt *p, __u32 seq)
{
	__be32 from = bpf_htonl(p->seq), to = bpf_htonl(seq);
	__u32 off = p->l4_off & 0xff;

	if (bpf_l4_csum_replace(skb, off + SL_TCP_CSUM_OFF, from, to, sizeof(to)))
		return -1;
	return (int)bpf_skb_store_bytes(skb, off + SL_TCP_SEQ_OFF, &to, sizeof(to), 0);
}

/* Before the stack: has netfilter see the RST as the end of the connection. */
static __always_inline void nf_show_rst(struct __sk_buff *skb, struct sl_ct_entry *ct, const struct sl_pkt *p,
					enum sl_dir dir)
{
	__u32 known = dir == SL_TX ? ct->nf_tx_end : ct->nf_rx_end;

	if (!nf_is_rst_of_fast(ct, p) || p->seq == known)
		return;
	ct->nf_rst_seq = p->seq;
	sl_nf_set_seq(skb, p, known);
}

/* Behind the stack: gives the RST its own number back. */
static __always_inline void nf_restore_rst(struct __sk_buff *skb, struct sl_ct_entry *ct, const struct sl_pkt *p,
					   enum sl_dir dir)
{
	__u32 known = dir == SL_TX ? ct->nf_tx_end : ct->nf_rx_end;

	if (!nf_is_rst_of_fast(ct, p) || p->seq != known || !ct->nf_rst_seq)
		return;
	sl_nf_set_seq(skb, p, ct->nf_rst_seq);
	ct->nf_rst_seq = 0;
}

/* Notes a packet at the last hook of its direction, of a connection whose first hook saw it under the same tuple. */
static __always_inline void ct_passed_stack(struct __sk_buff *skb, struct sl_ct_entry *ct, const struct sl_pkt *p,
					    enum sl_dir dir, __u64 now)
{
	__u32 seen = dir == SL_TX ? SL_CT_TX_SEEN_LAST : SL_CT_RX_SEEN_LAST;
	enum sl_nf nf = sl_nf_of(skb, &p->tuple);
	__u32 flags = ct->flags;
	bool rst = p->tcp_flags & SL_TCP_RST;

	/* Also of a connection whose entry netfilter has lost since the first hook wrote another number. */
	if (unlikely(rst))
		nf_restore_rst(skb, ct, p, dir);
	if (nf == SL_NF_UNTRACKED) {
		flags |= seen;
	} else if (nf == SL_NF_HELPED) {
		flags = (flags | SL_CT_TRACKED) & ~SL_CT_SEEN_LAST;
	} else {
		flags |= SL_CT_TRACKED;
		if (p->tcp_flags && !rst)
			flags = nf_note_tcp(ct, p, dir, flags, nf == SL_NF_YOUNG);
		else if (!p->tcp_flags && nf == SL_NF_ASSURED && now - ct->created >= SL_NF_STREAM_AGE)
			flags |= seen;
	}
	if (flags != ct->flags)
		ct->flags = flags;
}

/*
 * Must netfilter see the packet? It must see how a connection ends that it tracks, or the entry
 * stays, and counts (ct count, xt_connlimit). A connection that one end has closed stays with it.
 * What is out of place ends nothing, and netfilter, which is liberal, need not see it.
 */
static __always_inline bool nf_must_see(const struct sl_ct_entry *ct, const struct sl_pkt *p)
{
	return unlikely((ct->flags & SL_CT_TRACKED) && ((ct->flags & SL_CT_CLOSING) || !cfg_tcp_liberal)) &&
	       p->tcp_flags;
}
