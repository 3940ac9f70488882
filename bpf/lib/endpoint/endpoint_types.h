/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * What the loader tells the programs about pods, their devices and the uplinks. Addresses of pods are
 * keys of sl_endpoints; there is one value per address.
 */

/* An address, v4-mapped for IPv4. All zero is "::", ::ffff:0.0.0.0 is "0.0.0.0". */
struct sl_addr {
	__u8 ip[16];
};
_Static_assert(sizeof(struct sl_addr) == 16, "sl_addr is a map key: no hidden padding");

enum sl_endpoint_flag {
	SL_EP_MASQUERADE = 1 << 0, /* connections the pod opens leave with the node's address */
	SL_EP_ADMIT = 1 << 1,	   /* the firewall plugin admits its traffic: packets carry the admit mark */
	SL_EP_HOSTPORT = 1 << 2,   /* portmap publishes ports of the pod */
	/* Bits 8 and 9 belong to the bandwidth plugin: packets must not bypass a queue. */
	SL_EP_QDISC_RX = 1 << 8, /* the qdisc is on the host veth's egress, which packets to the pod must pass */
	SL_EP_IFB_TX = 1 << 9,	 /* packets from the pod go to an intermediate device (IFB), then to the stack */
};

/* One address of a pod. */
struct sl_endpoint {
	__u64 owner;	     /* first 8 bytes, big endian, of SHA-256(network NUL containerID NUL ifname) */
	__u64 pod;	     /* first 8 bytes, big endian, of SHA-256(containerID): the same for all devices of a pod */
	__u32 ifindex;	     /* the pod's host veth */
	__u32 route_ifindex; /* device its packets are routed from: the bridge, else the host end */
	__u32 flags;	     /* enum sl_endpoint_flag */
	__u32 mtu;	     /* of the pod's device */
	__u8 mac[6];	     /* of the pod's device */
	__u8 gateway_mac[6]; /* of route_ifindex */
	__u8 gateway[16];    /* address of route_ifindex that hairpin and masqAll show to the pod; zero = none */
	__u8 prefix_len;     /* of the pod's own subnet, 96 + n for IPv4 */
	__u8 tracked;	     /* 1: sl_pod_devices has ifindex while the device exists */
	__u16 policy;	     /* as sl_dev_policy.policy of the device; 0 = none */
};
_Static_assert(sizeof(struct sl_endpoint) == 64, "sl_endpoint is a map value");

/* Counters of one pod device, per CPU. */
struct sl_endpoint_stats {
	__u64 rx_packets; /* toward the pod */
	__u64 rx_bytes;
	__u64 tx_packets; /* from the pod */
	__u64 tx_bytes;
	__u64 rx_fast; /* of rx_packets, on the fast path */
	__u64 tx_fast;
	__u64 drops; /* by Sluice's programs, both directions */
	__u64 pod;   /* no counters: sl_endpoint.pod and .owner of the device, written by the loader */
	__u64 owner;
};
_Static_assert(sizeof(struct sl_endpoint_stats) == 72, "sl_endpoint_stats is a map value: no hidden padding");

/* The one source MAC that a pod with macspoofchk may use. */
struct sl_pod_mac {
	__u64 owner; /* as sl_endpoint.owner */
	__u8 mac[6];
	__u8 pad[2];
};
_Static_assert(sizeof(struct sl_pod_mac) == 16, "sl_pod_mac is a map value");

/* A UDP port on which a VXLAN device of the node waits for frames of other nodes (nat/tunnel.h). */
struct sl_tunnel_port {
	__u32 ifindex; /* of the device; 0: any */
	__be16 port;
	__u8 pad[2];
};
_Static_assert(sizeof(struct sl_tunnel_port) == 8, "sl_tunnel_port is a map key");

/* sl_uplink.bare */
enum sl_bare {
	SL_BARE_NO = 0,
	SL_BARE_FAST = 1,    /* no Ethernet header */
	SL_BARE_NO_FAST = 2, /* and a redirect to it would not take the pod's header off (PPP before Linux 6.6) */
};

/* A device that carries pod traffic out of the node. */
struct sl_uplink {
	__u8 src4[16]; /* masquerade source where the kernel lacks BPF_FIB_LOOKUP_SRC; zero = none */
	__u8 src6[16];
	__u16 bare; /* enum sl_bare. The programs know by cfg_l2_len whether there is a header */
	/*
	 * A bridge, or a device on one: the longest frame that goes through its ingress once more after
	 * it was translated (fastpath/again.h). 0: no bridge.
	 */
	__u16 again_max;
};
_Static_assert(sizeof(struct sl_uplink) == 36, "sl_uplink is a map value: no hidden padding");
