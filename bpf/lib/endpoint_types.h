/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/* An address, v4-mapped for IPv4. All zero is "::", ::ffff:0.0.0.0 is "0.0.0.0". */
struct sl_addr {
	__u8 ip[16];
};

enum sl_endpoint_flag {
	SL_EP_MASQUERADE = 1 << 0, /* connections the pod opens leave with the node's address */
	SL_EP_ADMIT = 1 << 1,	   /* the firewall plugin admits its traffic: packets carry the admit mark */
	SL_EP_PUBLISH = 1 << 2,	   /* portmap publishes ports of it */
};

/* One address of a pod. */
struct sl_endpoint {
	__u64 owner;	     /* first 8 bytes, big endian, of SHA-256(network NUL containerID NUL ifname) */
	__u64 pod;	     /* first 8 bytes, big endian, of SHA-256(containerID): the same for all devices of a pod */
	__u32 ifindex;	     /* host end of the pod's device */
	__u32 route_ifindex; /* device its packets are routed from: the bridge, else the host end */
	__u32 flags;	     /* enum sl_endpoint_flag */
	__u32 mtu;	     /* of the pod's device */
	__u8 mac[6];	     /* of the pod's device */
	__u8 gateway_mac[6]; /* of route_ifindex */
	__u8 prefix_len;     /* of the pod's own subnet, 96 + n for IPv4 */
	__u8 pad[3];
};
_Static_assert(sizeof(struct sl_endpoint) == 48, "sl_endpoint is a map value");

/* Counters of one pod device, per CPU. */
struct sl_endpoint_stats {
	__u64 rx_packets; /* toward the pod */
	__u64 rx_bytes;
	__u64 tx_packets; /* from the pod */
	__u64 tx_bytes;
	__u64 rx_fast; /* of rx_packets, by the learned path */
	__u64 tx_fast;
	__u64 drops; /* by our programs, both directions */
	__u64 pod;   /* not a counter: sl_endpoint.pod of the device, written by the loader */
};

/* A device that carries pod traffic out of the node. */
struct sl_uplink {
	__u8 src4[16]; /* masquerade source where the kernel lacks BPF_FIB_LOOKUP_SRC; zero = none */
	__u8 src6[16];
};

/* LPM key of the destinations that are not masqueraded. */
struct sl_cidr {
	__u32 prefix_len; /* 0-128, host byte order; 96 + n for IPv4 */
	__u8 ip[16];
};
