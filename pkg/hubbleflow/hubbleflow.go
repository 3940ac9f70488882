// SPDX-License-Identifier: Apache-2.0

// Package hubbleflow turns what `sluice observe` tells into the messages of Hubble's API, which the tools that people have understand.
//
// cmd/sluice prints them, and the node agent serves them. The package links the messages alone, not gRPC. It knows no API server: names come
// from its caller. docs/observability.md says what a field means where Sluice has no equal.
package hubbleflow

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Types of events, and where a packet was seen, as Cilium numbers them (pkg/monitor/api).
const (
	typeDrop       = 1
	typeTrace      = 4
	pointToPod     = 0
	pointToNetwork = 11
)

// identityInit is Cilium's number for a pod whose labels are not known yet.
const identityInit = 5

// Names answers for an address. It is safe for concurrent use.
type Names interface {
	// Endpoint is what is at an address; nil: not known.
	Endpoint(ip netip.Addr) *flow.Endpoint
	// Service is the Service at an address; nil: none.
	Service(ip netip.Addr) *flow.Service
}

// Flow is the message for an event, nil for one about lost events. names may be nil.
func Flow(e *flowevent.Event, node string, names Names) *flow.Flow {
	if e.Event == flowevent.Lost {
		return nil
	}
	to := e.Destination
	if e.Backend.IsValid() { // as where Cilium translates: the pod is the end, and the Service stands beside it
		to = e.Backend
	}
	f := &flow.Flow{
		Time: timestamppb.New(e.Time), NodeName: node, Type: flow.FlowType_L3_L4, IsReply: wrapperspb.Bool(false), L4: layer4(e, to.Port()),
		Summary: summary(e), //nolint:staticcheck // deprecated, and what published clients show
		Source:  endpoint(e, e.Source.Addr(), flowevent.Egress, names), Destination: endpoint(e, to.Addr(), flowevent.Ingress, names),
		EventType: &flow.CiliumEventType{Type: typeTrace},
	}
	if e.Source.IsValid() {
		f.IP = &flow.IP{Source: e.Source.Addr().String(), Destination: to.Addr().String(), IpVersion: flow.IPVersion_IPv4}
		if e.Source.Addr().Is6() {
			f.IP.IpVersion = flow.IPVersion_IPv6
		}
		if names != nil {
			f.SourceService, f.DestinationService = names.Service(e.Source.Addr()), names.Service(e.Destination.Addr())
		}
	}
	switch e.Direction {
	case flowevent.Ingress:
		f.TrafficDirection, f.TraceObservationPoint = flow.TrafficDirection_INGRESS, flow.TraceObservationPoint_TO_ENDPOINT
		f.EventType.SubType = pointToPod
	case flowevent.Egress:
		f.TrafficDirection, f.TraceObservationPoint = flow.TrafficDirection_EGRESS, flow.TraceObservationPoint_TO_NETWORK
		f.EventType.SubType = pointToNetwork
		if e.Outside.IsValid() && f.IP != nil {
			f.IP.SourceXlated = e.Outside.Addr().String()
		}
	}
	verdict(f, e)
	return f
}

func verdict(f *flow.Flow, e *flowevent.Event) {
	f.TraceReason = flow.TraceReason_ESTABLISHED
	if e.Event == flowevent.New {
		f.TraceReason = flow.TraceReason_NEW
	}
	switch e.Verdict {
	case flowevent.VerdictForwarded:
		f.Verdict = flow.Verdict_FORWARDED
	case flowevent.VerdictDropped:
		f.Verdict, f.DropReasonDesc = flow.Verdict_DROPPED, Reason(e.Reason)
		f.TraceReason, f.TraceObservationPoint = flow.TraceReason_TRACE_REASON_UNKNOWN, flow.TraceObservationPoint_UNKNOWN_POINT
		f.EventType = &flow.CiliumEventType{Type: typeDrop, SubType: int32(f.DropReasonDesc)}
		f.IsReply = nil
		if e.Device != "" {
			f.Interface = &flow.NetworkInterface{Name: e.Device}
		}
	}
}

// endpoint is one end. The pod of the attachment is at the end that its direction names.
func endpoint(e *flowevent.Event, ip netip.Addr, pod string, names Names) *flow.Endpoint {
	out := &flow.Endpoint{}
	if names != nil && ip.IsValid() {
		if known := names.Endpoint(ip); known != nil {
			out = known
		}
	}
	if e.Direction == pod && e.Pod != nil && e.Pod.Name != "" && out.GetPodName() == "" {
		known := out.GetIdentity() != 0
		out = &flow.Endpoint{Namespace: e.Pod.Namespace, PodName: e.Pod.Name}
		if known { // by its address alone the pod would be outside of the cluster
			out.Identity, out.Labels = identityInit, []string{"reserved:init"}
			if e.Pod.Namespace != "" {
				out.Labels = append(out.Labels, "k8s:io.kubernetes.pod.namespace="+e.Pod.Namespace)
			}
		}
	}
	return out
}

func layer4(e *flowevent.Event, port uint16) *flow.Layer4 {
	from, to := uint32(e.Source.Port()), uint32(port)
	switch e.Proto {
	case "tcp":
		return &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: from, DestinationPort: to, Flags: tcpFlags(e)}}}
	case "udp":
		return &flow.Layer4{Protocol: &flow.Layer4_UDP{UDP: &flow.UDP{SourcePort: from, DestinationPort: to}}}
	case "sctp":
		return &flow.Layer4{Protocol: &flow.Layer4_SCTP{SCTP: &flow.SCTP{SourcePort: from, DestinationPort: to}}}
	case "icmp":
		typ, code := icmp(e, 8)
		return &flow.Layer4{Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: typ, Code: code}}}
	case "icmp6":
		typ, code := icmp(e, 128)
		return &flow.Layer4{Protocol: &flow.Layer4_ICMPv6{ICMPv6: &flow.ICMPv6{Type: typ, Code: code}}}
	}
	return nil
}

// tcpFlags are those of a dropped packet. Of a connection they say what happened to it.
func tcpFlags(e *flowevent.Event) *flow.TCPFlags {
	switch {
	case e.Event == flowevent.New:
		return &flow.TCPFlags{SYN: true}
	case e.Event == flowevent.Ended && e.Reason == flowevent.EndFIN:
		return &flow.TCPFlags{FIN: true, ACK: true}
	case e.Event == flowevent.Ended && e.Reason == flowevent.EndRST:
		return &flow.TCPFlags{RST: true}
	case e.Event != flowevent.Dropped:
		return &flow.TCPFlags{ACK: true}
	}
	if e.Header.Fragment {
		return nil
	}
	has := e.Header.TCP.Has
	return &flow.TCPFlags{
		FIN: has(ipproto.FIN), SYN: has(ipproto.SYN), RST: has(ipproto.RST), PSH: has(ipproto.PSH),
		ACK: has(ipproto.ACK), URG: has(ipproto.URG), ECE: has(ipproto.ECE), CWR: has(ipproto.CWR),
	}
}

// Lost is the message for an event about lost events, nil for another.
func Lost(e *flowevent.Event) *flow.LostEvent {
	if e.Event != flowevent.Lost {
		return nil
	}
	source := flow.LostEventSource_OBSERVER_EVENTS_QUEUE
	if e.Reason == flowevent.LostBuffer {
		source = flow.LostEventSource_PERF_EVENT_RING_BUFFER
	}
	return &flow.LostEvent{Source: source, NumEventsLost: e.Lost}
}

// JSON is the line that "hubble observe -o jsonpb" has for an event, with its line break.
func JSON(e *flowevent.Event, node string) ([]byte, error) {
	line := struct {
		Flow json.RawMessage `json:"flow,omitempty"`
		Lost json.RawMessage `json:"lost_events,omitempty"`
		Node string          `json:"node_name,omitempty"`
		Time string          `json:"time"`
	}{Node: node, Time: e.Time.UTC().Format(time.RFC3339Nano)}
	marshal := protojson.MarshalOptions{UseProtoNames: true}
	var err error
	if lost := Lost(e); lost != nil {
		line.Lost, err = marshal.Marshal(lost)
	} else {
		line.Flow, err = marshal.Marshal(Flow(e, node, nil))
	}
	if err != nil {
		return nil, err
	}
	out, err := json.Marshal(line)
	return append(out, '\n'), err
}
