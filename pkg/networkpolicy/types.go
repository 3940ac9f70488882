// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Namespace is what policies can ask of a namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Pod is what policies can ask of a pod, and what decides whether they do.
type Pod struct {
	UID       string
	Namespace string
	Labels    map[string]string
	Addrs     []netip.Addr // none while the pod has no address yet
	Ports     []NamedPort  // of all containers, init containers that go on running included
	Node      string       // the node's name; empty while the pod is not scheduled
	Created   time.Time    // in seconds, as the API server has it; decides between two pods with one address

	// HostNetwork pods have the node's addresses. No policy selects them, neither as subjects nor as peers.
	HostNetwork bool
	// Terminal is the phase Succeeded or Failed. A pod that is being deleted is not terminal: it keeps what it may do until its end.
	Terminal bool
}

// NamedPort is a port of a container with a name.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Number   uint16
}

// Protocol is a number of the IP header.
type Protocol uint8

// The protocols whose ports policies can name. AnyProtocol in a rule's port stands for all of them.
const (
	AnyProtocol Protocol = 0
	TCP         Protocol = 6
	UDP         Protocol = 17
	SCTP        Protocol = 132
)

// protocols are those with ports, in the order of segments.
var protocols = [...]Protocol{TCP, UDP, SCTP}

func (p Protocol) String() string {
	if p == AnyProtocol {
		return "any"
	}
	return ipproto.Name(uint8(p))
}

func (p Protocol) hasPorts() bool { return ipproto.HasPorts(uint8(p)) }

// Tier is when a policy is asked. Lower tiers are asked first.
type Tier uint8

// The tiers. NetworkPolicies is the tier of networking.k8s.io/v1, the others are those of ClusterNetworkPolicy.
const (
	Admin Tier = iota
	NetworkPolicies
	Baseline
)

func (t Tier) String() string {
	switch t {
	case Admin:
		return "Admin"
	case NetworkPolicies:
		return "NetworkPolicy"
	case Baseline:
		return "Baseline"
	}
	return "Tier(" + strconv.Itoa(int(t)) + ")"
}

// Action is what a rule of the tiers Admin and Baseline does with a connection. Rules of NetworkPolicies only accept.
type Action uint8

// The actions. Pass leaves the tier.
const (
	Accept Action = iota
	Deny
	Pass
)

func (a Action) String() string {
	switch a {
	case Accept:
		return "Accept"
	case Deny:
		return "Deny"
	case Pass:
		return "Pass"
	}
	return "Action(" + strconv.Itoa(int(a)) + ")"
}

// Direction is seen from the pod that a policy selects.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// directions has both, in the order of segments.
var directions = [...]Direction{Ingress, Egress}

// Policy is one object in a form that serves NetworkPolicy and ClusterNetworkPolicy.
type Policy struct {
	Namespace string // empty for a cluster's policy
	Name      string
	Tier      Tier
	Priority  int // within Admin and Baseline: lower ones are asked first, and equal ones by name
	Subject   PodSelector

	// Isolates says in which directions a policy of the tier NetworkPolicies has a say: there its pods get what its rules accept and
	// nothing else. Other tiers ignore it.
	Isolates [2]bool // by Direction
	Rules    [2][]Rule
}

// Rule decides about connections that one of its peers opens, or is opened to, at one of its ports. Without peers it is about
// everybody, without ports about everything, ICMP included.
type Rule struct {
	Action Action
	Peers  []Peer
	Ports  []Port
}

// Peer is the other end of a connection. Exactly one of Pods, Block and Unsupported is set.
type Peer struct {
	Pods  *PodSelector
	Block *Block
	// Unsupported says why a peer cannot be told. A rule that accepts leaves it out. Any other rule denies everything instead, as
	// ClusterNetworkPolicy asks of an implementation that cannot read a peer.
	Unsupported string
}

// PodSelector selects pods of one namespace or of all whose labels match.
type PodSelector struct {
	Namespace  string   // a name; if it is empty, Namespaces decides
	Namespaces Selector // of labels of the namespace
	Pods       Selector // of labels of the pod
}

// Block is a network without some parts. Bits beyond the prefix's length do not count.
type Block struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

// Port is where a connection is opened to: a range of numbers that includes both ends, or the name that the pod behind the port
// gives to it. That pod is the one of the policy for ingress, and the peer for egress.
type Port struct {
	Protocol    Protocol // AnyProtocol only with a name
	First, Last uint16
	Name        string
	Unsupported string // as that of a peer
}
