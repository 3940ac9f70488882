// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// busyPod names the pods of pageNode.
func busyPod(i int) attachments.ID {
	return attachments.ID{Network: []string{"dbnet", "web"}[i%2], ContainerID: fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i)})), IfName: "eth0"}
}

// pageNode is a node with something of everything: what the pictures of the page show.
func pageNode() *fakeNode {
	n := newFakeNode()
	n.records, n.dp.Ports, n.dp.Connections = nil, nil, nil
	n.dp.State.Endpoints, n.dp.Rules = nil, nil
	n.dp.State.Maps = append(n.dp.State.Maps, loader.MapStatus{Name: "sl_hostports", Type: "Hash", ID: 8, Entries: 6, InUse: 6, Max: 16384},
		loader.MapStatus{Name: "sl_ct_unassured", Type: "LRUHash", ID: 9, Entries: 65536, InUse: 61_200, Max: 65536})
	for i := range 12 {
		id := busyPod(i)
		section := attachments.Section{State: attachments.StateDone}
		rec := &attachments.Record{Version: 1, ID: id, NetNS: "/run/netns/" + id.ContainerID[:8], Created: born, Plugins: map[string]attachments.Section{"bridge": section, "portmap": section}}
		if i == 3 {
			rec.Plugins["bandwidth"] = attachments.Section{State: attachments.StateDone, Data: json.RawMessage(
				`{"backend":"edt","reason":"the host veth can have an fq qdisc","ingress":{"rate":1250000,"burst":262144,"derived":true},"hostIfName":"veth3","hostIfindex":13}`)}
		}
		n.records = append(n.records, rec)
		n.dp.State.Endpoints = append(n.dp.State.Endpoints, loader.EndpointStatus{
			Owner: id.Owner(), Features: []string{"masquerade", "publish"}, HostIfindex: 10 + i, HostIfName: fmt.Sprintf("veth%d", i), MTU: 1500,
			Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 2)}), 16), netip.PrefixFrom(addr(fmt.Sprintf("fd00:1::%x", i+2)), 64)},
			MAC:   fmt.Sprintf("aa:bb:cc:dd:ee:%02x", i),
			Stats: loader.EndpointCounter{
				RxPackets: 90_000 / uint64(i+1), RxBytes: 64 << 20 / uint64(i+1), TxPackets: 80_000 / uint64(i+1), TxBytes: 9 << 20 / uint64(i+1),
				RxFast: 84_000 / uint64(i+1), TxFast: 77_000 / uint64(i+1), Drops: uint64(i % 4 / 3 * 3),
			},
		})
	}
	n.dp.Limits = []loader.RateLimitStatus{{Owner: busyPod(3).Owner(), Rate: 1_250_000, Burst: 262144, Bytes: 48 << 20, Packets: 36_000, Drops: 12, Backlog: 3 * time.Millisecond}}
	for i, p := range []uint16{8080, 8443, 5432, 53} {
		proto := uint8(6)
		if p == 53 {
			proto = 17
		}
		n.dp.Ports = append(n.dp.Ports, hostport.Entry{Mapping: hostport.Mapping{
			Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: proto, Port: p}, PodIP: n.dp.State.Endpoints[i].Addrs[0].Addr(), PodPort: p - 8000*(p/8000), SNAT: true,
		}, Owner: busyPod(i).Owner(), Generation: uint64(i + 1)})
	}
	n.dp.Ports[2].AllowedSources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:1::/48")}
	n.dp.Rules = []loader.PolicyStatus{{ID: 3, Mode: policy.ModeIsolated, Owners: []uint64{busyPod(2).Owner(), busyPod(4).Owner()},
		Ingress: []loader.RuleStatus{{Number: 0, Allow: true, Network: netip.MustParsePrefix("192.0.2.0/24"), Protocol: "tcp", Ports: "5432", Hits: 1240}, {Number: -1, Protocol: "any", Hits: 31}},
		Egress:  []loader.RuleStatus{{Number: -1, Allow: true, Protocol: "any", Hits: 77}}}}
	n.dp.Connections = busyFlows()
	n.choices = map[string]netfilter.Choice{"auto": {Name: "nftables", Reason: "the node has rules of nft", Decided: born}}
	return n
}

func busyFlows() []loader.Flow {
	var flows []loader.Flow
	for i := range 60 {
		pod := i * 7 % 12
		f := loader.Flow{Proto: 6, Owner: busyPod(pod).Owner(), State: "established", Fast: i%9 != 0, Age: time.Duration(i*i+3) * time.Second,
			Idle: time.Duration(i*137%9000) * time.Millisecond, RxPackets: uint64(90 * (i + 1)), RxBytes: uint64(70_000 * (60 - i)), TxPackets: uint64(80 * (i + 1)), TxBytes: uint64(9_000 * (i + 1))}
		ip := netip.AddrFrom4([4]byte{10, 1, 0, byte(pod + 2)})
		outside := netip.AddrFrom4([4]byte{198, 51, 100, byte(i*5%23 + 1)})
		switch i % 3 {
		case 0: // from outside to a hostPort
			pod = i % 4
			f.Owner, f.Kind = busyPod(pod).Owner(), "hostport"
			ip = netip.AddrFrom4([4]byte{10, 1, 0, byte(pod + 2)})
			p := []uint16{8080, 8443, 5432, 53}[pod]
			f.Pod, f.Remote, f.Outside = netip.AddrPortFrom(ip, p%8000), netip.AddrPortFrom(outside, uint16(40_000+i)), netip.AddrPortFrom(addr("192.0.2.1"), p)
			if p == 53 {
				f.Proto, f.State = 17, "unreplied"
			}
		case 1: // masqueraded
			f.Kind, f.PodOpened = "masquerade", true
			f.Pod, f.Remote, f.Outside = netip.AddrPortFrom(ip, uint16(41_000+i)), netip.AddrPortFrom(outside, 443), netip.AddrPortFrom(addr("192.0.2.1"), uint16(61_000+i))
		default: // of two pods
			f.Kind, f.PodOpened = "plain", true
			other := (pod + 1 + i%5) % 12
			f.Pod, f.Remote = netip.AddrPortFrom(ip, uint16(42_000+i)), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(other + 2)}), 5432)
		}
		flows = append(flows, f)
	}
	return flows
}

func uiJSON(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func lookAt(t *testing.T, n *fakeNode) *uiLook {
	t.Helper()
	l, err := (&app{node: n}).lookForUI(t.Context(), &podNames{node: n})
	if err != nil {
		t.Fatal(err)
	}
	if n.dp.Handles != 0 {
		t.Error("a handle was not closed")
	}
	l.node.Taken, l.node.Host, l.node.Status.Version = born, "node-1", "v0.1.0"
	return l
}

// What the page gets has the shapes that the commands print. The golden files are what the browser's tests show.
func TestUILook(t *testing.T) {
	l := lookAt(t, pageNode())
	rows, err := l.Connections(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{"node.json": l.Node(), "connections.json": rows} {
		text := uiJSON(t, v)
		golden(t, filepath.Join("..", "internal", "ui", "pagetest", "testdata", name), text)
		wantSnakeCase(t, text)
	}
	for _, part := range []struct {
		args string
		view any
	}{
		{"endpoints", l.node.Endpoints}, {"hostports", l.node.HostPorts}, {"bandwidth", l.node.Limits}, {"firewall", l.node.Policies}, {"drops", l.node.Drops},
	} {
		out, _, _ := runTool(t, pageNode(), 0, part.args, "-o", "json")
		var want, got any
		if err := errors.Join(json.Unmarshal([]byte(out), &want), json.Unmarshal([]byte(uiJSON(t, part.view)), &got)); err != nil {
			t.Fatal(err)
		}
		if w, g := uiJSON(t, want), uiJSON(t, got); w != g || len(out) < 10 {
			t.Errorf("sluice %s -o json and the page differ:\n%s\n%s", part.args, w, g)
		}
	}
}

// Pods have their names wherever the page shows an owner, and can be found by them.
func TestUILookNames(t *testing.T) {
	n := pageNode()
	n.podNames = map[attachments.ID][2]string{n.records[0].ID: {"shop", "web-0"}}
	l := lookAt(t, n)
	text := uiJSON(t, []any{l.node.Endpoints, l.node.HostPorts, l.node.Limits, l.node.Policies, l.node.Drops})
	id := fmt.Sprintf("%q", l.names.view(n.records[0].Owner()).ID)
	if owned, named := strings.Count(text, `"id": `+id), strings.Count(text, `"pod": "web-0"`); owned == 0 || owned != named {
		t.Errorf("%d of %d owners have the name of their pod:\n%s", named, owned, text)
	}
	v, err := l.Connections(url.Values{"q": {"shop/web-0"}})
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := v.(uiFlowsView); found.Matched == 0 || found.Rows[0].Owner.Pod != "web-0" {
		t.Errorf("%+v", v)
	}
}

// Without a datapath, or without some files, the page says what there is.
func TestUILookWithoutDatapath(t *testing.T) {
	n := pageNode()
	n.dp.State = nil
	n.decision = &loader.Status{Backend: "none", Reason: "no BTF", Probes: []loader.Probe{{Name: "btf", Answer: loader.AnswerNo}}}
	l := lookAt(t, n)
	if v := l.node.Status; v.Loaded || v.Backend != "none" || len(v.Attachments) != 12 || len(l.node.Limits) != 1 {
		t.Errorf("%+v", v)
	}
	if strings.Contains(uiJSON(t, l.Node()), ": null,\n \"endpoints") {
		t.Error("a list is null")
	}
	n.readErr = errors.New("permission denied")
	if l = lookAt(t, n); len(l.node.Failed) != 1 || !strings.Contains(l.node.Failed[0], "attachment records: permission denied") {
		t.Errorf("%q", l.node.Failed)
	}
	n.openErr = errors.New("run this as root")
	if _, err := (&app{node: n}).lookForUI(t.Context(), &podNames{node: n}); err == nil || err.Error() != "run this as root" {
		t.Errorf("%v", err)
	}
}

// The table's query selects, and nothing makes it longer than it may be.
func TestUIConnections(t *testing.T) {
	l := lookAt(t, pageNode())
	for query, want := range map[string]int{
		"": 60, "kind=hostport": 20, "kind=": 60, "proto=udp": 5, "kind=masquerade&proto=udp": 0, "q=10.1.0.3": 12, "q=10.1.0.3+masquerade": 5,
		"q=HOSTPORT": 20, "q=nothing+like+it": 0, "limit=5": 60, "q=" + url.QueryEscape("<script>"): 0,
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		v, err := l.Connections(values)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		found, _ := v.(uiFlowsView)
		if found.Matched != want || found.Total != 60 || found.Rows == nil {
			t.Errorf("%s: %d of %d", query, found.Matched, found.Total)
		}
		if query == "limit=5" && len(found.Rows) != 5 {
			t.Errorf("%d rows", len(found.Rows))
		}
		for _, r := range found.Rows {
			if !r.has(strings.Fields(strings.ToLower(values.Get("q")))) {
				t.Errorf("%s: %+v", query, r)
			}
		}
	}
	for _, bad := range []string{"limit=0", "limit=1001", "limit=-1", "limit=x", "kind=x", "proto=TCPX", "state=%00", "sort=-bytes", "owner=1", "q=a&order=b"} {
		values, err := url.ParseQuery(bad)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := l.Connections(values); err == nil {
			t.Errorf("%s: %+v", bad, v)
		}
	}
	many := &uiLook{}
	many.node.Connections.States, many.node.Connections.Kinds = map[string]int{}, map[string]int{}
	for i := range uiMaxFlows + 5 {
		many.count(loader.Flow{Proto: 6, Age: time.Duration(i)})
	}
	v, err := many.Connections(url.Values{"limit": {"1000"}})
	if found, ok := v.(uiFlowsView); err != nil || !ok || found.Total != uiMaxFlows+5 || found.Left != 5 || len(found.Rows) != uiMaxRows {
		t.Errorf("%v", err)
	}
}

// Two pods' connection counts once, from who opened it; many addresses outside share one end.
func TestUITalk(t *testing.T) {
	web, db := addr("10.1.0.2"), addr("10.1.0.3")
	talk := newUITalk([]loader.EndpointStatus{
		{Owner: 1, Addrs: []netip.Prefix{netip.PrefixFrom(web, 16)}}, {Owner: 2, Addrs: []netip.Prefix{netip.PrefixFrom(db, 16)}},
	}, []hostAddressView{{Address: addr("192.0.2.1")}}, []hostport.Entry{{Mapping: hostport.Mapping{Key: hostport.Key{Proto: 6, Port: 8080}}}})
	flow := func(pod, remote string, opened bool, kind, outside string, bytes uint64) {
		f := loader.Flow{Proto: 6, Pod: port(pod), Remote: port(remote), PodOpened: opened, Kind: kind, RxBytes: bytes}
		if outside != "" {
			f.Outside = port(outside)
		}
		talk.add(f)
	}
	flow("10.1.0.2:4000", "10.1.0.3:5432", true, "plain", "", 10)
	flow("10.1.0.3:5432", "10.1.0.2:4000", false, "plain", "", 10) // the other pod's entry of it
	flow("10.1.0.2:4001", "10.1.0.3:5432", true, "plain", "", 5)
	talk.add(loader.Flow{Proto: 17, Pod: port("10.1.0.3:53"), Remote: port("10.1.0.2:40000"), PodOpened: true, Kind: "plain", TxBytes: 2}) // an answer
	flow("10.1.0.2:80", "10.1.0.3:999", false, "hostport", "192.0.2.1:8080", 7)                                                            // hairpin
	flow("10.1.0.3:999", "192.0.2.1:8080", true, "plain", "", 7)
	flow("10.1.0.2:80", "192.0.2.1:55", false, "hostport", "127.0.0.1:8080", 3)
	for i := range 40 {
		flow("10.1.0.2:80", fmt.Sprintf("198.51.100.%d:1", i+1), false, "hostport", "192.0.2.1:8080", uint64(1000-i))
	}
	v := talk.view()
	var said []string
	outside := 0
	for _, e := range v.Edges {
		if e.From.Kind == "outside" {
			outside += e.Connections
			continue
		}
		said = append(said, fmt.Sprintf("%s%s>%s %s: %d, %d", e.From.Kind, strings.TrimLeft(e.From.Owner, "0"), e.To.Kind+strings.TrimLeft(e.To.Owner, "0"), e.Via, e.Connections, e.Bytes))
	}
	slices.Sort(said)
	want := []string{"node>pod1 tcp 8080: 1, 3", "pod1>pod2 : 3, 17", "pod2>pod1 tcp 8080: 1, 7"}
	if !slices.Equal(said, want) || outside != 40 || len(v.Edges) != 3+uiTalkOutside+1 || v.LeftOut != 0 {
		t.Errorf("%q, %d from outside, %d edges", said, outside, len(v.Edges))
	}
	for i := range 2 * uiTalkEdges {
		talk.add(loader.Flow{Proto: 6, Pod: netip.AddrPortFrom(web, 80), Remote: port("198.51.100.1:1"), Kind: "hostport", Outside: netip.AddrPortFrom(addr("192.0.2.1"), uint16(i+1))})
	}
	if v := talk.view(); len(v.Edges) != uiTalkEdges || v.LeftOut == 0 {
		t.Errorf("%d edges, %d left out", len(v.Edges), v.LeftOut)
	}
}

// A wrong flag ends the command before it listens, and names the flag.
func TestUIRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"ui --listen 0.0.0.0:9880":   "--listen \"0.0.0.0:9880\": is no loopback address",
		"ui --listen node:9880":      "--listen \"node:9880\": must be an IP address",
		"ui --listen 9880":           "--listen \"9880\": must be an address and a port",
		"ui --interval 1ms":          "--interval 1ms: must be at least 200ms",
		"ui -o json":                 "--output json: ui prints",
		"ui node":                    "takes no arguments",
		"ui --listen 127.0.0.1:9e99": "--listen",
	} {
		if out, errs, status := runTool(t, pageNode(), 0, strings.Fields(args)...); status != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q, %q", args, status, out, errs)
		}
	}
	n := pageNode()
	n.openErr = errors.New("what is loaded cannot be seen, run this as root")
	if out, errs, status := runTool(t, n, 0, "ui", "--listen", "127.0.0.1:0"); status != 1 || out != "" || !strings.Contains(errs, "run this as root") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}

// The command prints the URL, serves until it is interrupted, and leaves nothing open.
func TestUIServes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	n := pageNode()
	n.facts = &doctor.Facts{Config: nodeconf.Default(), Cgroup: "/sys/fs/cgroup"}
	done := make(chan int, 1)
	go func() {
		a := &app{out: w, err: w, node: n, ops: n}
		done <- a.run(ctx, []string{"ui", "--listen", "[::1]:0", "--interval", "1s"})
		_ = w.Close()
	}()
	line := make([]byte, 300)
	size, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(string(line[:size]))
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Jar: jar}
	for _, path := range []string{"", "api/node", "api/connections?kind=hostport&limit=3", "api/doctor"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		_ = a.Body.Close()
		if err != nil || a.StatusCode != http.StatusOK || len(body) < 100 {
			t.Errorf("%s%s: %s, %d bytes, %v", address, path, a.Status, len(body), err)
		}
		address = a.Request.URL.Scheme + "://" + a.Request.URL.Host + a.Request.URL.Path[:strings.LastIndex(a.Request.URL.Path, "/")+1]
		address = strings.TrimSuffix(address, "api/")
	}
	cancel()
	if status := <-done; status != 0 || n.dp.Handles != 0 {
		t.Errorf("status %d, %d handles open", status, n.dp.Handles)
	}
}
