/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/*
 * Load-time configuration: the loader writes these before the program is
 * verified, so that a feature that is off costs nothing (the verifier folds the
 * branch). Defaults here are what an object does when nothing is set.
 */

enum sl_fast_path {
	SL_FAST_OFF = 0,     /* every packet goes through the stack */
	SL_FAST_LEARNED = 1, /* a confirmed flow takes the shortcut */
};

volatile const __u32 cfg_fast_path = SL_FAST_LEARNED;
/* Drop what a pod sends with an address or MAC that is not its own. */
volatile const __u32 cfg_anti_spoof = 1;
/* Bits or-ed into skb->mark of traffic of admitted endpoints; 0 = none. */
volatile const __u32 cfg_admit_mark = 0;
/* The kernel has BPF_FIB_LOOKUP_SRC (6.7). */
volatile const __u32 cfg_fib_src = 0;
/* Masquerade port ranges, host byte order, inclusive; the second may be empty (0, 0). */
volatile const __u32 cfg_snat_min1 = 61000;
volatile const __u32 cfg_snat_max1 = 65535;
volatile const __u32 cfg_snat_min2 = 1024;
volatile const __u32 cfg_snat_max2 = 32767;
