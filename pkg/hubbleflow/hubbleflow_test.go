// SPDX-License-Identifier: Apache-2.0

package hubbleflow

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

var at = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func port(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// A masqueraded connection that a pod opened.
func TestConnection(t *testing.T) {
	t.Parallel()
	e := &flowevent.Event{
		Time: at, Event: flowevent.New, Verdict: flowevent.VerdictForwarded, Direction: flowevent.Egress, Proto: "tcp", Kind: "masquerade",
		Source: port("10.1.0.2:4000"), Destination: port("192.0.2.7:443"), Outside: port("192.0.2.1:61001"), State: "new",
		Pod: &flowevent.Pod{ContainerID: "3f", Namespace: "default", Name: "web-0"},
	}
	f := Flow(e, "node-a", nil)
	tcp := f.GetL4().GetTCP()
	if f.GetVerdict() != flow.Verdict_FORWARDED || f.GetIP().GetSource() != "10.1.0.2" || f.GetIP().GetSourceXlated() != "192.0.2.1" || f.GetIP().GetIpVersion() != flow.IPVersion_IPv4 ||
		tcp.GetSourcePort() != 4000 || tcp.GetDestinationPort() != 443 || !tcp.GetFlags().GetSYN() || f.GetSource().GetPodName() != "web-0" || f.GetSource().GetNamespace() != "default" ||
		f.GetDestination().GetPodName() != "" || f.GetTrafficDirection() != flow.TrafficDirection_EGRESS || f.GetTraceReason() != flow.TraceReason_NEW ||
		f.GetEventType().GetType() != typeTrace || f.GetNodeName() != "node-a" || f.GetIsReply().GetValue() || f.GetSummary() != "new, new, masquerade as 192.0.2.1:61001, 0 packets, 0 bytes" { //nolint:staticcheck // what clients show
		t.Errorf("%v", f)
	}
	e.Event, e.Reason = flowevent.Ended, flowevent.EndRST
	if flags := Flow(e, "", nil).GetL4().GetTCP().GetFlags(); !flags.GetRST() || flags.GetSYN() {
		t.Errorf("ended by RST: %v", flags)
	}
}

// A dropped packet has Cilium's reason that is nearest, and Sluice's in the summary.
func TestDropped(t *testing.T) {
	t.Parallel()
	f := Flow(&flowevent.Event{
		Time: at, Event: flowevent.Dropped, Verdict: flowevent.VerdictDropped, Direction: flowevent.Ingress, Proto: "icmp6", Reason: "ingress-rule", Device: "veth1",
		Source: port("[2001:db8::7]:0"), Destination: port("[fd00::2]:0"), Header: ipproto.Header{ICMP: &ipproto.ICMP{Type: 128, Code: 3}}, Pod: &flowevent.Pod{Namespace: "x", Name: "y"},
	}, "", nil)
	if f.GetVerdict() != flow.Verdict_DROPPED || f.GetDropReasonDesc() != flow.DropReason_POLICY_DENY || f.GetEventType().GetSubType() != int32(flow.DropReason_POLICY_DENY) ||
		f.GetL4().GetICMPv6().GetType() != 128 || f.GetL4().GetICMPv6().GetCode() != 3 || f.GetInterface().GetName() != "veth1" || f.GetDestination().GetPodName() != "y" ||
		f.GetIsReply() != nil || f.GetIP().GetIpVersion() != flow.IPVersion_IPv6 || f.GetSummary() != "ingress-rule [type 128 code 3]" { //nolint:staticcheck // what clients show
		t.Errorf("%v", f)
	}
	if f := Flow(&flowevent.Event{Event: flowevent.Dropped, Verdict: flowevent.VerdictDropped, Reason: "spoofed-mac"}, "", nil); f.GetIP() != nil || f.GetL4() != nil {
		t.Errorf("no IP packet: %v", f)
	}
}

// outside knows no pod.
type outside struct{}

func (outside) Endpoint(netip.Addr) *flow.Endpoint {
	return &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
}

func (outside) Service(netip.Addr) *flow.Service { return nil }

// A pod that the runtime has named, and the API server not yet, is not outside of the cluster.
func TestPodWithoutLabels(t *testing.T) {
	t.Parallel()
	f := Flow(&flowevent.Event{
		Time: at, Event: flowevent.New, Verdict: flowevent.VerdictForwarded, Direction: flowevent.Egress, Proto: "tcp", Source: port("10.1.0.2:4000"), Destination: port("192.0.2.7:443"),
		Pod: &flowevent.Pod{Namespace: "shop", Name: "cart-0"},
	}, "node-a", outside{})
	if s := f.GetSource(); s.GetPodName() != "cart-0" || s.GetIdentity() != 5 || strings.Join(s.GetLabels(), " ") != "reserved:init k8s:io.kubernetes.pod.namespace=shop" {
		t.Errorf("source: %v", s)
	}
	if d := f.GetDestination(); d.GetIdentity() != 2 || d.GetPodName() != "" {
		t.Errorf("destination: %v", d)
	}
}

// shop has a Service and the pod behind it.
type shop struct{}

func (shop) Endpoint(ip netip.Addr) *flow.Endpoint {
	if ip == netip.MustParseAddr("10.1.0.7") {
		return &flow.Endpoint{Identity: 1000, Namespace: "shop", PodName: "cart-0"}
	}
	return &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
}

func (shop) Service(ip netip.Addr) *flow.Service {
	if ip == netip.MustParseAddr("10.96.0.10") {
		return &flow.Service{Namespace: "shop", Name: "cart"}
	}
	return nil
}

// The destination of a connection to a Service is the pod behind it, where that is known. The Service stands beside it.
func TestBackend(t *testing.T) {
	t.Parallel()
	e := &flowevent.Event{
		Time: at, Event: flowevent.New, Verdict: flowevent.VerdictForwarded, Direction: flowevent.Egress, Proto: "tcp", Source: port("10.1.0.2:4000"),
		Destination: port("10.96.0.10:80"), Backend: port("10.1.0.7:8080"),
	}
	f := Flow(e, "node-a", shop{})
	if f.GetDestination().GetPodName() != "cart-0" || f.GetDestinationService().GetName() != "cart" || f.GetSourceService() != nil ||
		f.GetIP().GetDestination() != "10.1.0.7" || f.GetL4().GetTCP().GetDestinationPort() != 8080 || !strings.Contains(f.GetSummary(), "for 10.96.0.10:80") { //nolint:staticcheck // what clients show
		t.Errorf("%v", f)
	}
	e.Backend = netip.AddrPort{}
	if f := Flow(e, "node-a", shop{}); f.GetIP().GetDestination() != "10.96.0.10" || f.GetL4().GetTCP().GetDestinationPort() != 80 || f.GetDestinationService().GetName() != "cart" {
		t.Errorf("without a backend: %v", f)
	}
}

// A line is what Hubble's clients read: a GetFlowsResponse in protobuf's JSON.
func TestJSON(t *testing.T) {
	t.Parallel()
	for _, e := range []*flowevent.Event{
		{Time: at, Event: flowevent.New, Verdict: flowevent.VerdictForwarded, Proto: "udp", Source: port("10.1.0.2:4000"), Destination: port("192.0.2.7:53"), Pod: &flowevent.Pod{Namespace: "x", Name: "\x1b[2J\n"}},
		{Time: at, Event: flowevent.Lost, Reason: flowevent.LostBuffer, Lost: 12},
	} {
		b, err := JSON(e, "node-a")
		if err != nil {
			t.Fatal(err)
		}
		var line struct {
			Flow json.RawMessage `json:"flow"`
			Lost json.RawMessage `json:"lost_events"`
			Node string          `json:"node_name"`
			Time time.Time       `json:"time"`
		}
		if err := json.Unmarshal(b, &line); err != nil || line.Node != "node-a" || !line.Time.Equal(at) || strings.Count(string(b), "\n") != 1 || strings.Contains(string(b), "\x1b") {
			t.Fatalf("%v: %q", err, b)
		}
		var f flow.Flow
		var lost flow.LostEvent
		switch e.Event {
		case flowevent.Lost:
			if err := protojson.Unmarshal(line.Lost, &lost); err != nil || lost.GetNumEventsLost() != 12 || lost.GetSource() != flow.LostEventSource_PERF_EVENT_RING_BUFFER {
				t.Errorf("%v: %s", err, b)
			}
		default:
			if err := protojson.Unmarshal(line.Flow, &f); err != nil || f.GetL4().GetUDP().GetDestinationPort() != 53 {
				t.Errorf("%v: %s", err, b)
			}
		}
	}
}
