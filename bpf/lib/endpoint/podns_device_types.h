/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Devices with programs inside a pod's network namespace. Apart from podns/, since drops and statistics
 * use their keys too.
 */

/*
 * Programs inside a pod's network namespace hang on the pod's own device. An ifindex means nothing
 * there, because every namespace counts from 1. So the device has a number that is unique on the
 * node (1-65519). Its filters carry the number as their class (TCA_BPF_CLASSID), and the programs
 * read it as skb->tc_classid. In keys beside ifindexes (sl_ep_stats) the number has this bit.
 */
#define SL_PODNS_KEY 0x80000000U

/* A device inside a pod's network namespace. */
struct sl_podns_device {
	__u64 owner;	    /* as sl_endpoint.owner */
	__u64 pod;	    /* as sl_endpoint.pod */
	__u32 flags;	    /* enum sl_endpoint_flag: what programs inside the namespace do for it */
	__u32 host_ifindex; /* host veth, 0 = none */
};
_Static_assert(sizeof(struct sl_podns_device) == 24, "sl_podns_device is a map value");
