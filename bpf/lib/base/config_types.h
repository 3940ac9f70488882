/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once

/*
 * Values of load-time constants that Go must know too. Apart from config.h, so that types.bpf.c gets
 * no constant of its own.
 */

/* Values of cfg_fast_path. */
enum sl_fast_path {
	SL_FAST_OFF = 0,     /* every packet goes through the stack */
	SL_FAST_LEARNED = 1, /* a confirmed connection takes the fast path */
	SL_FAST_DIRECT = 2,  /* and a hostPort's connection from its first packet on */
};
