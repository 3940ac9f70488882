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

/* By what a packet at the parent device is a pod's. */
enum sl_parent_kind {
	SL_PARENT_ANY = 0,  /* nothing else: whatever comes from the namespace, or with the VLAN tag */
	SL_PARENT_MAC = 1,  /* its source MAC */
	SL_PARENT_ADDR = 2, /* its source address */
};

struct sl_parent_key {
	__u32 ifindex; /* of the parent, on the node */
	__u16 vlan;    /* the tag of a vlan device; 0 for macvlan and ipvlan */
	__u16 kind;    /* enum sl_parent_kind */
	__u64 netns;   /* cookie of the pod's network namespace; 0 where programs cannot ask for it (before 6.15) */
	__u8 id[16];   /* the MAC, or the address, v4-mapped for IPv4; else 0 */
};
_Static_assert(sizeof(struct sl_parent_key) == 32, "sl_parent_key is a map key: no hidden padding");

enum sl_parent_flag {
	SL_PARENT_BY_MAC = 1 << 0,  /* beside this SL_PARENT_ANY entry there are some with SL_PARENT_MAC */
	SL_PARENT_BY_ADDR = 1 << 1, /* or with SL_PARENT_ADDR */
};

/* A pod as the program on the parent device knows it. */
struct sl_parent_pod {
	__u64 owner;  /* as sl_endpoint.owner */
	__u32 device; /* number in sl_ns_devices whose rules hold; 0 = none */
	__u32 limit;  /* number in sl_edt_limits, with SL_EDT_POLICE; 0 = none */
	__u32 flags;  /* enum sl_parent_flag */
	__u32 pad;
};
_Static_assert(sizeof(struct sl_parent_pod) == 24, "sl_parent_pod is a map value: no hidden padding");
