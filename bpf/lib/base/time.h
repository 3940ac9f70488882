/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "config.h"

/*
 * The time of a packet, and units of time in nanoseconds.
 */

#define NSEC_PER_MSEC 1000000ULL
#define NSEC_PER_SEC 1000000000ULL

/*
 * The time of a packet (CLOCK_MONOTONIC, nanoseconds). No decision here needs less than
 * milliseconds, so the time of the last tick is enough (1-10 ms ago, CONFIG_HZ). Reading it does
 * not ask the hardware. Kernel 5.11 has it for tc.
 */
static __always_inline __u64 clock_now(void)
{
	return cfg_coarse_clock ? bpf_ktime_get_coarse_ns() : bpf_ktime_get_ns();
}
