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
/* Drop what a pod sends with an address or MAC that is not its own. */
volatile const __u32 cfg_anti_spoof = 1;
/* Bits or-ed into skb->mark of traffic of admitted endpoints; 0 = none. */
volatile const __u32 cfg_admit_mark = 0;
/*
 * Bytes of link header before the IP header: 14 on Ethernet, 0 on devices without one (TUN, WireGuard, PPP). Of the programs
 * for uplinks there is one set for each.
 */
volatile const __u32 cfg_l2_len = 14;
/* The kernel has BPF_FIB_LOOKUP_SRC (6.7). */
volatile const __u32 cfg_fib_src = 0;
/* The kernel has bpf_ktime_get_coarse_ns() for tc (5.11). */
volatile const __u32 cfg_coarse_clock = 0;
/* Cookie of the network namespace the datapath belongs to (SO_NETNS_COOKIE); 0 = the initial one. */
volatile const __u64 cfg_netns_cookie = 0;
/* Masquerade port ranges, host byte order, inclusive; the second may be empty (0, 0). */
volatile const __u32 cfg_snat_min1 = 61000;
volatile const __u32 cfg_snat_max1 = 65535;
volatile const __u32 cfg_snat_min2 = 1024;
volatile const __u32 cfg_snat_max2 = 32767;
/*
 * Where the search for a masquerade port begins is drawn from the connection's tuple and this secret (RFC 6056 3.3.3), so
 * that a mapping whose record was lost is found again. 0: at random.
 */
volatile const __u32 cfg_snat_secret = 0;
/*
 * What a packet carries in its control block from the shortcut to the egress of its uplink, so that nobody asks for it there
 * again: random, since a pod can make the stack leave bytes of its own there (IP options). 0: nothing.
 */
volatile const __u32 cfg_cb_cookie1 = 0;
volatile const __u32 cfg_cb_cookie2 = 0;
