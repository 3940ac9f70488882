/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"
#include "config_types.h"

/*
 * Load-time constants. The loader writes them before the verifier sees the program, so a feature
 * that is off costs nothing: the verifier removes its branch. The values here are the defaults of an
 * object that is loaded as it is.
 */

volatile const __u32 cfg_fast_path = SL_FAST_LEARNED;
/*
 * How long a confirmed connection keeps to the fast path before the stack sees packets of both
 * directions again, in units of 2^20 ns; 0 = for ever.
 */
volatile const __u32 cfg_relearn = 0;
/* Drop packets that a pod sends with an address or MAC that is not its own. */
volatile const __u32 cfg_anti_spoof = 1;
/* Bits that traffic of admitted endpoints gets in skb->mark; 0 = none. */
volatile const __u32 cfg_admit_mark = 0;
/*
 * Bytes of link header before the IP header: 14 on Ethernet, 0 on L3 uplinks (TUN, WireGuard, PPP).
 * The programs of uplinks are loaded once for each.
 */
volatile const __u32 cfg_l2_len = 14;
/*
 * 1: the programs of an uplink are on a device that has clients of hostPorts on this node instead: a
 * bridge of pods, or the host veth of a pod without programs. They translate hostPorts and leave all
 * else alone (docs/dev/design/clients.md).
 */
volatile const __u32 cfg_clients = 0;
/* The kernel has BPF_FIB_LOOKUP_SRC (6.7). */
volatile const __u32 cfg_fib_src = 0;
/* The kernel has bpf_ktime_get_coarse_ns() for tc (5.11). */
volatile const __u32 cfg_coarse_clock = 0;
/* The kernel tells tc programs the network namespace of a packet's socket (6.15). */
volatile const __u32 cfg_sk_netns = 0;
/* The kernel has netkit devices (6.7), whose programs run in the pod's own transmission. */
volatile const __u32 cfg_netkit = 0;
/* Cookie of the network namespace the datapath belongs to (SO_NETNS_COOKIE); 0 = the initial one. */
volatile const __u64 cfg_netns_cookie = 0;
/* Ports for masquerade where the own one is not free, host byte order, inclusive; the second range may be (0, 0). */
volatile const __u32 cfg_snat_min1 = 61000;
volatile const __u32 cfg_snat_max1 = 65535;
volatile const __u32 cfg_snat_min2 = 1024;
volatile const __u32 cfg_snat_max2 = 32767;
/*
 * Secret of the masquerade ports. The connection's tuple and this secret give the place where the
 * search starts (RFC 6056 3.3.3). So a connection whose entry was lost finds its port again. 0:
 * start at random.
 */
volatile const __u32 cfg_snat_secret = 0;
/*
 * What the fast path writes into skb->cb, so that the uplink's egress hook skips the packet.
 * Random, since a pod can make the stack leave bytes of its own there (IP options). 0: nothing.
 */
volatile const __u32 cfg_cb_cookie1 = 0;
volatile const __u32 cfg_cb_cookie2 = 0;
/* Offset of sk_buff._nfct on this kernel, bytes; 0: unknown, so each packet counts as tracked by netfilter. */
volatile const __u32 cfg_nfct_offset = 0;
/*
 * Offsets in nf_conn, netfilter's entry, bytes; 0: unknown. Without ext helpers are known by their
 * ports, and without status each entry of a connection that goes on counts as assured.
 */
volatile const __u32 cfg_nf_ext_offset = 0;
volatile const __u32 cfg_nf_status_offset = 0;
/* Where nf_conn has the tuples of both directions (tuplehash), bytes; 0: unknown, so no translation of netfilter is learned. */
volatile const __u32 cfg_nf_tuples_offset = 0;
/*
 * Where sk_buff says what checksum is still to be made (packet/csum_place.h), bytes: the first one, which has ip_summed under a mask,
 * and from there csum_start, with csum_offset behind it, and mac_header. A mask of 0: unknown.
 */
volatile const __u32 cfg_csum_part = 0;
volatile const __u32 cfg_csum_mask = 0;
volatile const __u32 cfg_csum_start = 0;
volatile const __u32 cfg_csum_mac = 0;
/* Netfilter accepts TCP packets outside of the window that it knows (nf_conntrack_tcp_be_liberal). */
volatile const __u32 cfg_tcp_liberal = 1;
/* Places in sl_ct_places that assured connections may take (conntrack/conntrack_share.h). */
volatile const __u32 cfg_ct_places = 65536;
/* Places behind those, for unassured connections; 0: they need none. */
volatile const __u32 cfg_ct_pending = 0;
/* Connections that open in a minute without an entry of sl_ct_unassured being evicted, for certain. */
volatile const __u32 cfg_ct_turnover = 4096;
