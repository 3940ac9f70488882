// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"strings"
	"testing"

	"github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// example has a value in each field that a filter can look at.
func example() *flow.Flow {
	return &flow.Flow{
		Verdict: flow.Verdict_DROPPED, DropReasonDesc: flow.DropReason_POLICY_DENY, NodeName: "node-a", TrafficDirection: flow.TrafficDirection_EGRESS,
		IP: &flow.IP{Source: "10.1.0.2", SourceXlated: "192.0.2.1", Destination: "198.51.100.7", IpVersion: flow.IPVersion_IPv4},
		L4: &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 4000, DestinationPort: 443, Flags: &flow.TCPFlags{SYN: true, ACK: true}}}},
		Source: &flow.Endpoint{Identity: 1 << 24, Namespace: "default", PodName: "web-0", Labels: []string{"k8s:app=web", "k8s:io.kubernetes.pod.namespace=default"},
			Workloads: []*flow.Workload{{Name: "web", Kind: "StatefulSet"}}},
		Destination: &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}, DestinationService: &flow.Service{Namespace: "shop", Name: "cart"},
		EventType: &flow.CiliumEventType{Type: 1, SubType: 181}, Interface: &flow.NetworkInterface{Name: "veth1"}, IsReply: wrapperspb.Bool(false),
	}
}

// Each field, once with a value that matches and once with one that does not.
func TestFilterFields(t *testing.T) {
	t.Parallel()
	type filter = flow.FlowFilter
	for name, tt := range map[string]struct{ yes, no *filter }{
		"source_ip":         {&filter{SourceIp: []string{"1.2.3.4", "10.1.0.0/16"}}, &filter{SourceIp: []string{"10.1.0.3"}}},
		"source_ip_xlated":  {&filter{SourceIpXlated: []string{"192.0.2.1"}}, &filter{SourceIpXlated: []string{"10.1.0.2"}}},
		"destination_ip":    {&filter{DestinationIp: []string{"198.51.100.7"}}, &filter{DestinationIp: []string{"2001:db8::/32"}}},
		"source_pod":        {&filter{SourcePod: []string{"web"}}, &filter{SourcePod: []string{"other/web"}}},
		"any namespace":     {&filter{SourcePod: []string{"/web-"}}, &filter{SourcePod: []string{"/db"}}},
		"namespace":         {&filter{SourcePod: []string{"default/"}}, &filter{SourcePod: []string{"defaul/"}}},
		"destination_pod":   {&filter{SourcePod: []string{"web"}}, &filter{DestinationPod: []string{"/"}}},
		"destination_svc":   {&filter{DestinationService: []string{"shop/cart"}}, &filter{SourceService: []string{"shop/cart"}}},
		"source_label":      {&filter{SourceLabel: []string{"app in (web, db)"}}, &filter{SourceLabel: []string{"app!=web"}}},
		"k8s label":         {&filter{SourceLabel: []string{"k8s:app=web,k8s:io.kubernetes.pod.namespace=default"}}, &filter{SourceLabel: []string{"k8s:app=db"}}},
		"destination_label": {&filter{DestinationLabel: []string{"reserved:world"}}, &filter{DestinationLabel: []string{"reserved:host"}}},
		"source_workload":   {&filter{SourceWorkload: []*flow.Workload{{Name: "web"}}}, &filter{SourceWorkload: []*flow.Workload{{Name: "web", Kind: "Deployment"}}}},
		"dst workload":      {&filter{SourceWorkload: []*flow.Workload{{Kind: "StatefulSet"}}}, &filter{DestinationWorkload: []*flow.Workload{{Name: "web"}}}},
		"source_identity":   {&filter{SourceIdentity: []uint32{2, 1 << 24}}, &filter{SourceIdentity: []uint32{2}}},
		"destination_id":    {&filter{DestinationIdentity: []uint32{2}}, &filter{DestinationIdentity: []uint32{0, 1 << 24}}},
		"source_port":       {&filter{SourcePort: []string{"1", "4000"}}, &filter{SourcePort: []string{"443"}}},
		"destination_port":  {&filter{DestinationPort: []string{"443"}}, &filter{DestinationPort: []string{"4000"}}},
		"traffic_direction": {&filter{TrafficDirection: []flow.TrafficDirection{flow.TrafficDirection_EGRESS}}, &filter{TrafficDirection: []flow.TrafficDirection{flow.TrafficDirection_INGRESS}}},
		"verdict":           {&filter{Verdict: []flow.Verdict{flow.Verdict_FORWARDED, flow.Verdict_DROPPED}}, &filter{Verdict: []flow.Verdict{flow.Verdict_FORWARDED}}},
		"drop_reason_desc":  {&filter{DropReasonDesc: []flow.DropReason{flow.DropReason_POLICY_DENY}}, &filter{DropReasonDesc: []flow.DropReason{flow.DropReason_POLICY_DENIED}}},
		"ip_version":        {&filter{IpVersion: []flow.IPVersion{flow.IPVersion_IPv4}}, &filter{IpVersion: []flow.IPVersion{flow.IPVersion_IPv6}}},
		"interface":         {&filter{Interface: []*flow.NetworkInterface{{Name: "veth1"}}}, &filter{Interface: []*flow.NetworkInterface{{Name: "veth2"}}}},
		"event_type":        {&filter{EventType: []*flow.EventTypeFilter{{Type: 1}}}, &filter{EventType: []*flow.EventTypeFilter{{Type: 1, MatchSubType: true, SubType: 133}}}},
		"protocol":          {&filter{Protocol: []string{"TCP"}}, &filter{Protocol: []string{"udp", "icmp", "sctp"}}},
		"reply":             {&filter{Reply: []bool{false}}, &filter{Reply: []bool{true}}},
		"tcp_flags":         {&filter{TcpFlags: []*flow.TCPFlags{{SYN: true}}}, &filter{TcpFlags: []*flow.TCPFlags{{SYN: true, FIN: true}}}},
		"node_name":         {&filter{NodeName: []string{"default/node-*"}}, &filter{NodeName: []string{"other/node-a", "node-b"}}},
		"two fields":        {&filter{Protocol: []string{"tcp"}, SourcePod: []string{"web"}}, &filter{Protocol: []string{"tcp"}, SourcePod: []string{"db"}}},
	} {
		for _, want := range []bool{true, false} {
			f := tt.yes
			if !want {
				f = tt.no
			}
			m, err := newMatch(f)
			if err != nil || m(example()) != want {
				t.Errorf("%s: want %v, %v", name, want, err)
			}
		}
	}
}

// What cannot be answered is an error that names the field: a filter that is passed over would show more than was asked for.
func TestFilterRefuses(t *testing.T) {
	t.Parallel()
	type filter = flow.FlowFilter
	for field, f := range map[string]*filter{
		"source_fqdn": {SourceFqdn: []string{"a"}}, "destination_fqdn": {DestinationFqdn: []string{"a"}}, "http_status_code": {HttpStatusCode: []string{"200"}},
		"dns_query":   {DnsQuery: []string{"a"}},
		"http_method": {HttpMethod: []string{"GET"}}, "http_path": {HttpPath: []string{"/"}}, "http_url": {HttpUrl: []string{"/"}}, "http_header": {HttpHeader: []*flow.HTTPHeader{{Key: "a"}}},
		"node_labels": {NodeLabels: []string{"a"}}, "trace_id": {TraceId: []string{"a"}}, "uuid": {Uuid: []string{"a"}}, "experimental": {Experimental: &flow.FlowFilter_Experimental{}},
		"protocol": {Protocol: []string{"http"}}, "source_ip": {SourceIp: []string{"10.1.0"}}, "destination_port": {DestinationPort: []string{"0"}},
		"source_pod": {SourcePod: []string{""}}, "destination_label": {DestinationLabel: []string{"=a=,"}}, "node_name": {NodeName: []string{"["}},
	} {
		for list, r := range map[string]*observer.GetFlowsRequest{"whitelist": {Whitelist: []*filter{{}, f}}, "blacklist": {Blacklist: []*filter{{}, f}}} {
			_, err := newRequest(r)
			if list == "blacklist" && strings.HasSuffix(field, "_fqdn") { // TestNoNames
				continue
			}
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), list+": "+field+": ") {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	if _, err := newRequest(&observer.GetFlowsRequest{First: true, Follow: true}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("first with follow: %v", err)
	}
}

// No flow has a DNS name, so a list of names leaves no flow out. Hubble UI sends one with each request.
func TestNoNames(t *testing.T) {
	t.Parallel()
	for _, f := range []*flow.FlowFilter{
		{SourceFqdn: []string{"*.cluster.local*"}}, {DestinationFqdn: []string{"*"}}, {DestinationFqdn: []string{"*"}, Protocol: []string{"tcp"}},
	} {
		if r, err := newRequest(&observer.GetFlowsRequest{Blacklist: []*flow.FlowFilter{f}}); err != nil || !r.wants(example()) {
			t.Errorf("%v: %v", f, err)
		}
	}
	with := &flow.FlowFilter{SourceFqdn: []string{"a"}, HttpMethod: []string{"GET"}}
	if _, err := newRequest(&observer.GetFlowsRequest{Blacklist: []*flow.FlowFilter{with}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("with a field of layer 7: %v", err)
	}
}

// A dropped packet is no reply for a filter, as Cilium's server has it: Hubble UI asks for what is no reply.
func TestReplyOfDrop(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		f    *flow.Flow
		want bool
	}{
		"dropped": {&flow.Flow{Verdict: flow.Verdict_DROPPED}, true}, "not known": {&flow.Flow{Verdict: flow.Verdict_FORWARDED}, false},
		"reply": {&flow.Flow{IsReply: wrapperspb.Bool(true)}, false}, "no reply": {&flow.Flow{IsReply: wrapperspb.Bool(false)}, true},
	} {
		m, err := newMatch(&flow.FlowFilter{Reply: []bool{false}})
		if err != nil || m(tt.f) != tt.want {
			t.Errorf("%s: want %v, %v", name, tt.want, err)
		}
	}
}

// A flow is shown if one filter of the first list matches, and none of the second.
func TestLists(t *testing.T) {
	t.Parallel()
	tcp, udp := &flow.FlowFilter{Protocol: []string{"tcp"}}, &flow.FlowFilter{Protocol: []string{"udp"}}
	for name, tt := range map[string]struct {
		white, black []*flow.FlowFilter
		want         bool
	}{
		"none": {nil, nil, true}, "one of two": {[]*flow.FlowFilter{udp, tcp}, nil, true}, "none of one": {[]*flow.FlowFilter{udp}, nil, false},
		"black": {nil, []*flow.FlowFilter{udp, tcp}, false}, "other black": {nil, []*flow.FlowFilter{udp}, true}, "both": {[]*flow.FlowFilter{tcp}, []*flow.FlowFilter{tcp}, false},
	} {
		r, err := newRequest(&observer.GetFlowsRequest{Whitelist: tt.white, Blacklist: tt.black})
		if err != nil || r.wants(example()) != tt.want {
			t.Errorf("%s: want %v, %v", name, tt.want, err)
		}
	}
}

func TestMask(t *testing.T) {
	t.Parallel()
	m, err := newMask([]string{"verdict", "source.pod_name", "l4.TCP"})
	if err != nil {
		t.Fatal(err)
	}
	f := example()
	m.apply(f)
	if f.GetVerdict() != flow.Verdict_DROPPED || f.GetSource().GetPodName() != "web-0" || f.GetSource().GetNamespace() != "" || f.GetIP() != nil || f.GetL4().GetTCP().GetSourcePort() != 4000 {
		t.Errorf("%v", f)
	}
	if _, err := newRequest(&observer.GetFlowsRequest{FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"source.nonsense"}}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown field: %v", err)
	}
}
