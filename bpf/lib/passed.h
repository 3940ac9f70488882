/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "config.h"

/*
 * The shortcut sends a packet out by an uplink whose egress hook sees it once more, when all has been done to it. The
 * control block stays with the packet on that way, unless it has to wait for its neighbour: one that has lost the word is
 * looked at like any other.
 */
static __always_inline void passed_note(struct __sk_buff *skb)
{
	if (!cfg_passed1)
		return;
	skb->cb[3] = cfg_passed1;
	skb->cb[4] = cfg_passed2;
}

/* Does the packet come from the shortcut? */
static __always_inline bool passed(const struct __sk_buff *skb)
{
	return cfg_passed1 && skb->cb[3] == cfg_passed1 && skb->cb[4] == cfg_passed2;
}
