/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/config.h"

/*
 * Marks skb->cb on the fast path. The packet meets the egress hook of the uplink once more, and that
 * hook skips what is marked. A packet that waits for its neighbour loses the mark; it is then handled
 * like any other. What a pod behind netkit sends to a pod of this node meets sl_to_pod, which has to
 * know that no process of the node has sent it.
 */

/* Marks a packet that the fast path sends out by an uplink. */
static __always_inline void cb_mark(struct __sk_buff *skb)
{
	if (!cfg_cb_cookie1)
		return;
	skb->cb[3] = cfg_cb_cookie1;
	skb->cb[4] = cfg_cb_cookie2;
}

/* Takes the mark off what goes on to a pod, which must not learn the cookie. */
static __always_inline void cb_unmark(struct __sk_buff *skb)
{
	skb->cb[3] = 0;
	skb->cb[4] = 0;
}

/*
 * Marks a translated packet that goes through the ingress of its device once more (again.h). The
 * words are the other way round: they say something else.
 */
static __always_inline void cb_mark_again(struct __sk_buff *skb)
{
	skb->cb[3] = cfg_cb_cookie2;
	skb->cb[4] = cfg_cb_cookie1;
}

/* Is it such a packet? */
static __always_inline bool cb_marked_again(const struct __sk_buff *skb)
{
	return cfg_cb_cookie1 && skb->cb[3] == cfg_cb_cookie2 && skb->cb[4] == cfg_cb_cookie1;
}

/* Does the packet come from the fast path? */
static __always_inline bool cb_marked(const struct __sk_buff *skb)
{
	return cfg_cb_cookie1 && skb->cb[3] == cfg_cb_cookie1 && skb->cb[4] == cfg_cb_cookie2;
}
