/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Devices with programs inside a pod's network namespace. Apart from podns/, since drops and statistics
 * use their keys too.
 */

/*
 * Programs inside a pod's network namespace hang on the pod's own device. An
 * ifindex means nothing there: every namespace counts from 1. Such a device has
 * a number of the node instead (1-65519), which its filters carry as their class
 * (TCA_BPF_CLASSID) and the programs read as skb->tc_classid. As a key beside
 * ifindexes of the node, in sl_ep_stats, it has this bit.
 */
#define SL_PODNS_KEY 0x80000000U

/* A pod's own device. */
struct sl_podns_device {
	__u64 owner;	    /* as sl_endpoint.owner */
	__u64 pod;	    /* as sl_endpoint.pod */
	__u32 flags;	    /* enum sl_endpoint_flag: what programs inside the namespace do for it */
	__u32 host_ifindex; /* host end of the device, 0 = none */
};
_Static_assert(sizeof(struct sl_podns_device) == 24, "sl_podns_device is a map value");
