/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * Policies, their rules, and the devices that are under one.
 */

/* Rules of one policy, both directions together. The verifier checks the loop over them once. */
#define SL_POLICY_RULES 256

enum sl_rule_flag {
	SL_RULE_ALLOW = 1 << 0, /* else deny */
	SL_RULE_V4 = 1 << 1,	/* is about IPv4 */
	SL_RULE_V6 = 1 << 2,
};

/* One rule. The first match decides. */
struct sl_rule {
	__u8 ip[16];	/* of the end that is not the pod, v4-mapped for IPv4; bits outside of the mask are 0 */
	__u8 mask[16];	/* all zero matches every address of the families in flags */
	__u64 hits;	/* decisions by this rule: connections it allowed, packets it denied */
	__u32 port_min; /* of the end that is asked, host byte order */
	__u32 port_max; /* above 65535: the rule is not about ports, and matches packets without ports too */
	__u8 proto;
	__u8 proto_mask; /* 0 = any protocol, else 255 */
	__u8 flags;	 /* enum sl_rule_flag */
	__u8 number;	 /* its place among the rules of its direction in the configuration, from 0 */
	__u8 pad[4];
};
_Static_assert(sizeof(struct sl_rule) == 56, "sl_rule is in a map value: no hidden padding");

enum sl_policy_flag {
	SL_POLICY_DENY_INGRESS = 1 << 0, /* what no rule matches */
	SL_POLICY_DENY_EGRESS = 1 << 1,
	SL_POLICY_SAME_BRIDGE = 1 << 2, /* ingressPolicy same-bridge */
	SL_POLICY_ISOLATED = 1 << 3,	/* ingressPolicy isolated */
	SL_POLICY_NO_RULES = 1 << 4,	/* of a device: there is nothing in sl_policies */
	SL_POLICY_NETWORK = 1 << 5,	/* of a device: there is something in sl_np_policies */
};

/*
 * A policy. Only its counters change: another policy has another id, so connections know that their
 * verdict is old.
 */
struct sl_policy {
	__u32 flags;	       /* enum sl_policy_flag */
	__u16 ingress_count;   /* rules[0..ingress_count) are for connections toward the pod */
	__u16 egress_count;    /* the next ones for connections the pod opens */
	__u64 ingress_default; /* decisions without a matching rule */
	__u64 egress_default;
	struct sl_rule rules[SL_POLICY_RULES];
};
_Static_assert(sizeof(struct sl_policy) == 24 + 56 * SL_POLICY_RULES, "sl_policy is a map value: no hidden padding");

/* A pod device under a policy. */
struct sl_dev_policy {
	__u64 owner;  /* as sl_endpoint.owner */
	__u32 group;  /* ifindex of the bridge, or of the host veth of a device without one; 0 = inside the pod */
	__u16 policy; /* id, never 0 */
	__u16 flags;  /* enum sl_policy_flag, those of ingressPolicy and those of a device */
};
_Static_assert(sizeof(struct sl_dev_policy) == 16, "sl_dev_policy is a map value: no hidden padding");
