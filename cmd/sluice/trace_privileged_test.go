// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/trace"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// traceWorld is a node with pods on routed veths, whose port 80 answers.
type traceWorld struct {
	*netlab.Lab
	t        *testing.T
	pods     map[string]*netlab.Pod
	jsonOnly bool // each trace loads programs, and takes as long as that: the text is looked at in one family
}

func newTraceWorld(t *testing.T) *traceWorld {
	t.Helper()
	w := &traceWorld{Lab: netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true}), t: t, pods: map[string]*netlab.Pod{}}
	t.Cleanup(func() { real(t, w.Node, "unload", "--force") })
	w.script("echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; echo 0 >/proc/sys/net/ipv4/conf/eth0/rp_filter")
	w.add("web", loader.FeaturePublish, nil)
	w.add("app", loader.FeatureMasquerade, nil)
	closed, err := policy.Parse("", json.RawMessage(`{"ingressDefault":"deny"}`))
	if err != nil {
		t.Fatal(err)
	}
	w.add("closed", loader.FeatureAdmit, closed)
	stop, err := w.Client().ServeTCP(":9000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	return w
}

func (w *traceWorld) script(s string) {
	w.t.Helper()
	if err := w.Node.Do(func() error {
		_, err := netlab.Run("sh", "-ec", s)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *traceWorld) ref(name string) attachments.ID {
	return attachments.ID{Network: "lab", ContainerID: name + "00", IfName: "eth0"}
}

// addr is the address of a pod.
func (w *traceWorld) addr(name string, six bool) netip.Addr {
	i := map[string]int{"web": 0, "app": 1, "closed": 2}[name]
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:1:%d::2", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.1.%d.2", i))
}

func (w *traceWorld) add(name string, f loader.Feature, p *policy.Policy) {
	w.t.Helper()
	pod, i := w.Node.PodT(w.t, name), len(w.pods)
	w.pods[name] = pod
	w.script(fmt.Sprintf(`i=%d pod=%s
		ip link add v$i type veth peer name eth0 netns $pod
		ip addr add 10.1.$i.1/24 dev v$i; ip addr add fd00:1:$i::1/64 dev v$i nodad; ip link set v$i up
		ip -n $pod link set lo up; ip -n $pod addr add 10.1.$i.2/24 dev eth0; ip -n $pod addr add fd00:1:$i::2/64 dev eth0 nodad; ip -n $pod link set eth0 up
		ip -n $pod route add default via 10.1.$i.1; ip -n $pod route add default via fd00:1:$i::1`, i, name))
	w.enable(name, "ptp", f, p)
	stop, err := pod.ServeTCP(":80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = stop() })
}

// enable does for eth0 of a pod what a plugin does at ADD. A macvlan has no host veth.
func (w *traceWorld) enable(name, plugin string, f loader.Feature, p *policy.Policy) {
	w.t.Helper()
	path, resolve := w.pods[name].Path, loader.Resolve
	if plugin == "macvlan" {
		resolve = loader.ResolvePodns
	}
	err := w.Node.Do(func() error {
		dp, err := loader.Open(w.t.Context(), loader.Options{Loader: ebpfload.InProcess{}})
		if err != nil {
			return err
		}
		defer dp.Close()
		ep, err := resolve(w.t.Context(), path, "eth0")
		if err != nil {
			return err
		}
		ep.Ref, ep.Policy = w.ref(name), p
		records := attachments.Open(attachments.DefaultDir)
		if err := errors.Join(records.Begin(ep.Ref, path, plugin, nil), records.Complete(ep.Ref, plugin, nil)); err != nil {
			return err
		}
		if err := dp.Enable(w.t.Context(), ep, f); err != nil || f != loader.FeaturePublish {
			return err
		}
		return dp.SetHostPorts(w.t.Context(), ep.Ref.Owner(), nil, []hostport.Mapping{
			{Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: 6, Port: 8080}, PodIP: w.addr(name, false), PodPort: 80, SNAT: true},
			{Key: hostport.Key{HostIP: netip.IPv6Unspecified(), Proto: 6, Port: 8080}, PodIP: w.addr(name, true), PodPort: 80, SNAT: true},
		})
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// greeting connects for real, and returns the peer's address as the server saw it; "" without an answer.
func (w *traceWorld) greeting(from *netlab.NS, local, to string) string {
	return w.greetingWithin(netlab.Patient(2*time.Second), from, local, to)
}

// noGreeting is greeting where no answer is expected.
func (w *traceWorld) noGreeting(from *netlab.NS, local, to string) string {
	return w.greetingWithin(300*time.Millisecond, from, local, to)
}

func (w *traceWorld) greetingWithin(limit time.Duration, from *netlab.NS, local, to string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	c, err := from.DialFrom(ctx, "tcp", local, to)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

// trace runs "trace" and returns what it says, and its exit status.
func (w *traceWorld) trace(line string, a ...any) (v traceView, status int) {
	w.t.Helper()
	args := append([]string{"trace"}, strings.Fields(fmt.Sprintf(line, a...))...)
	out, errs, status := real(w.t, w.Node, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		w.t.Fatalf("%v: status %d, %s: %v", args, status, errs, err)
	}
	if w.jsonOnly || strings.Contains(line, "--wait") {
		return v, status
	}
	text, _, _ := real(w.t, w.Node, args...)
	w.t.Logf("sluice %s\n%s", strings.Join(args, " "), text)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[len(lines)-1] != v.Summary {
		w.t.Errorf("%v: the last line is %q, JSON says %q", args, lines[len(lines)-1], v.Summary)
	}
	return v, status
}

func (w *traceWorld) wantLine(v traceView, status, want int, begins string) {
	w.t.Helper()
	if status != want || !strings.HasPrefix(v.Summary, begins) {
		w.t.Errorf("exit status %d, %q; want %d and %q: %+v", status, v.Summary, want, begins, v.Steps)
	}
}

// What trace says of a packet is what becomes of a real one.
func TestPrivilegedTrace(t *testing.T) {
	w := newTraceWorld(t)
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			w.t, w.jsonOnly = t, six
			node, client := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
			if six {
				node, client = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:1::2")
			}
			web, app, closed := w.addr("web", six), w.addr("app", six), w.addr("closed", six)
			at := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

			// Pod to pod of another network, which sees the address of its gateway.
			v, status := w.trace("%s %s --port 80 --from-port 49201", app, web)
			w.wantLine(v, status, 0, "delivered to pod lab/web00/eth0 as "+at(web, 80))
			if got := w.greeting(w.pods["app"].NS, at(app, 49201), at(web, 80)); got == "" || v.As != "tcp "+got+" > "+at(web, 80) {
				t.Errorf("a real connection is from %q, trace says %s", got, v.As)
			}

			// Masquerade: the port that is foretold is the port that a real connection gets.
			v, status = w.trace("%s %s --port 9000 --from-port 49200", app, client)
			seen := w.greeting(w.pods["app"].NS, at(app, 49200), at(client, 9000))
			w.wantLine(v, status, 0, "sent out of eth0 as "+seen)
			if seen == "" || !strings.HasPrefix(seen, strings.TrimSuffix(at(node, 0), "0")) {
				t.Errorf("a real connection: %q", seen)
			}

			// A hostPort, from outside.
			v, status = w.trace("%s %s --port 8080", client, node)
			w.wantLine(v, status, 0, "delivered to pod lab/web00/eth0 as "+at(web, 80))
			if got := w.greeting(w.Client().NS, ":0", at(node, 8080)); got == "" {
				t.Error("a real connection has no answer")
			}

			// Rules.
			v, status = w.trace("%s %s --port 80", app, closed)
			w.wantLine(v, status, 1, "dropped at sl_to_pod on v2: ")
			if got := w.noGreeting(w.pods["app"].NS, at(app, 0), at(closed, 80)); got != "" || v.Reason == "" || v.Do == "" {
				t.Errorf("a real connection: %q, reason %q", got, v.Reason)
			}

			// A spoofed source.
			source := map[bool]string{false: "10.7.7.7", true: "fd77::7"}[six]
			v, status = w.trace("app00 %s --port 9000 --source %s", client, source)
			w.wantLine(v, status, 1, "dropped at sl_from_pod on v1: spoofed-ip: ")
			before := w.dropped("spoofed-ip")
			w.script(fmt.Sprintf("ip -n app addr replace %s dev lo; ip netns exec app sysctl -qw net.ipv4.conf.all.arp_announce=2; ip netns exec app ping -c 1 -W 1 -I %s %s >/dev/null 2>&1 || true", source, source, client))
			if after := w.dropped("spoofed-ip"); after <= before {
				t.Errorf("a real packet was not dropped: %d, %d", before, after)
			}

			// No route.
			v, status = w.trace("app00 %s --port 80", map[bool]string{false: "10.9.9.9", true: "fd99::9"}[six])
			w.wantLine(v, status, 0, "sent out of eth0")
			family := map[bool]string{false: "-4", true: "-6"}[six]
			w.script("ip " + family + " route del default")
			v, status = w.trace("app00 %s --port 80", map[bool]string{false: "10.9.9.9", true: "fd99::9"}[six])
			w.wantLine(v, status, 1, "dropped at the node's routing on v1: no-route: ")
			w.script(fmt.Sprintf("ip %s route add default via %s", family, client))

			// Forwarding is off.
			key := map[bool]string{false: "net/ipv4/conf/v1/forwarding", true: "net/ipv6/conf/all/forwarding"}[six]
			w.script("echo 0 >/proc/sys/" + key)
			v, status = w.trace("%s %s --port 9000", app, client)
			w.wantLine(v, status, 1, "dropped at the node's routing on v1: forwarding-off: ")
			if got := w.noGreeting(w.pods["app"].NS, at(app, 0), at(client, 9000)); got != "" {
				t.Errorf("a real connection: %q", got)
			}
			w.script("echo 1 >/proc/sys/" + key)
			if six {
				w.script("ip -6 route replace default via " + client.String()) // the sysctl takes routes of router advertisements alone
			}

			// FORWARD drops.
			w.script("nft add table inet gate; nft 'add chain inet gate guard { type filter hook forward priority 0; policy drop; }'")
			v, status = w.trace("%s %s --port 9000", app, client)
			w.wantLine(v, status, 1, "dropped at the chain inet gate guard: netfilter-policy: ")
			if got := w.noGreeting(w.pods["app"].NS, at(app, 0), at(client, 9000)); got != "" {
				t.Errorf("a real connection: %q", got)
			}
			w.script("nft 'add rule inet gate guard accept'")
			v, status = w.trace("%s %s --port 9000", app, client)
			w.wantLine(v, status, 0, "sent out of eth0")
			if !strings.Contains(v.Summary, ", if a rule of inet gate guard accepts it") {
				t.Errorf("a chain that was not asked is not named: %s", v.Summary)
			}
			w.script("nft delete table inet gate")

			// The denylist.
			if _, errs, status := real(t, w.Node, "deny", "add", client.String()); status != 0 {
				t.Fatal(errs)
			}
			v, status = w.trace("%s %s --port 8080", client, node)
			w.wantLine(v, status, 1, "dropped at sl_xdp_denylist on eth0: denied: ")
			if got := w.noGreeting(w.Client().NS, ":0", at(node, 8080)); got != "" {
				t.Errorf("a real connection: %q", got)
			}
			real(t, w.Node, "deny", "del", client.String())

			// ICMP.
			v, status = w.trace("%s %s --protocol icmp", app, web)
			w.wantLine(v, status, 0, "delivered to pod lab/web00/eth0")
		})
	}
	w.t = t
	w.bridged()
	w.withoutHostVeth()
	w.reversePath()
	w.refusals()
	w.changesNothing()
}

func (w *traceWorld) dropped(reason string) (n uint64) {
	w.t.Helper()
	for _, v := range realJSON[[]dropCountView](w.t, w.Node, "drops") {
		if v.Reason == reason {
			n = v.Packets
		}
	}
	return n
}

// bridged has two pods on a bridge: they talk past the stack's routing, and leave the node by it.
func (w *traceWorld) bridged() {
	w.t.Helper()
	w.script("ip link add cni0 type bridge; ip addr add 10.5.0.1/24 dev cni0; ip link set cni0 up")
	var names []string
	for i, name := range []string{"b0", "b1"} {
		pod := w.Node.PodT(w.t, name)
		names, w.pods[name] = append(names, name), pod
		w.script(fmt.Sprintf(`i=%d pod=%s
			ip link add p$i type veth peer name eth0 netns $pod; ip link set p$i master cni0 up
			ip -n $pod link set lo up; ip -n $pod addr add 10.5.0.1$i/24 dev eth0; ip -n $pod link set eth0 up; ip -n $pod route add default via 10.5.0.1`, i, name))
		w.enable(name, "bridge", loader.FeatureMasquerade, nil)
		stop, err := pod.ServeTCP(":80")
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = stop() })
	}
	v, status := w.trace("%s00 %s00 --port 80", names[0], names[1])
	w.wantLine(v, status, 0, "delivered to pod lab/b100/eth0 as 10.5.0.11:80")
	if !slices.ContainsFunc(v.Steps, func(s trace.Step) bool { return s.Kind == "bridge" && s.At == "cni0" }) {
		w.t.Errorf("not bridged: %+v", v.Steps)
	}
	if got := w.greeting(w.pods["b0"].NS, "10.5.0.10:0", "10.5.0.11:80"); !strings.HasPrefix(got, "10.5.0.10:") {
		w.t.Errorf("a real connection: %q", got)
	}
	v, status = w.trace("b000 192.0.2.2 --port 9000 --from-port 49300")
	if got := w.greeting(w.pods["b0"].NS, "10.5.0.10:49300", "192.0.2.2:9000"); got == "" || status != 0 || v.Summary != "sent out of eth0 as "+got {
		w.t.Errorf("a real connection: %q, trace: %d %s", got, status, v.Summary)
	}
	// A hairpin: by the node's address to a pod of the node.
	v, status = w.trace("b000 192.0.2.1 --port 8080 --from-port 49301")
	if got := w.greeting(w.pods["b0"].NS, "10.5.0.10:49301", "192.0.2.1:8080"); got == "" || status != 0 || v.As != "tcp "+got+" > 10.1.0.2:80" {
		w.t.Errorf("a real connection is from %q, trace: %d %s, %s", got, status, v.As, v.Summary)
	}
	v, status = w.trace("b000 10.5.0.99 --port 80")
	if status != 0 || !strings.Contains(v.Summary, "10.5.0.99 answers the pod") {
		w.t.Errorf("a neighbour that was not asked: %d, %s", status, v.Summary)
	}
	if got := w.greeting(w.pods["b0"].NS, "10.5.0.10:0", "10.5.0.99:80"); got != "" {
		w.t.Errorf("a real connection: %q", got)
	}
	time.Sleep(netlab.Patient(2 * time.Second)) // three requests, a second each
	v, status = w.trace("b000 10.5.0.99 --port 80")
	w.wantLine(v, status, 1, "dropped at the pod's neighbour table: no-neighbour: ")

	// A process of the node.
	v, status = w.trace("node 10.5.0.11 --port 80")
	w.wantLine(v, status, 0, "delivered to pod lab/b100/eth0 as 10.5.0.11:80")
	v, status = w.trace("b000 node --port 22")
	w.wantLine(v, status, 0, "delivered to the node itself as 192.0.2.1:22")
	w.script("ip -n b0 route del default")
	v, status = w.trace("b000 192.0.2.2 --port 9000")
	w.wantLine(v, status, 1, "dropped at the pod's own routes: no-route-in-pod: ")
}

// reversePath has a client send from an address that the node would not answer by the same device.
func (w *traceWorld) reversePath() {
	w.t.Helper()
	w.script("ip route add 203.0.113.7/32 dev v1; echo 1 >/proc/sys/net/ipv4/conf/eth0/rp_filter")
	v, status := w.trace("203.0.113.7 node --port 8080 --via eth0")
	w.wantLine(v, status, 1, "dropped at the node's routing on eth0: rp-filter: ")
	w.script("echo 0 >/proc/sys/net/ipv4/conf/eth0/rp_filter")
	v, status = w.trace("203.0.113.7 192.0.2.1 --port 8080 --via eth0")
	if v.Reason == "rp-filter" || v.Path.Verdict != "delivered" {
		w.t.Errorf("without the check: %d, %s", status, v.Summary)
	}
	w.script("ip route del 203.0.113.7/32 dev v1")
}

// refusals are questions without an answer: one line that says what to do.
func (w *traceWorld) refusals() {
	w.t.Helper()
	for line, want := range map[string]string{
		"trace":             "needs FROM and TO",
		"trace app00 web00": "--port",
		"trace app00 web00 --port 80 --protocol sctp":  "must be tcp, udp or icmp",
		"trace app00 web00 --port 70000":               "70000",
		"trace app00 web00 --port 80 --source 1.2.3":   "not an IP address",
		"trace app00 nobody --port 80":                 "sluice endpoints",
		"trace app00 web00 --port 80 --via eth0":       "--via",
		"trace 192.0.2.2 web00 --port 80 --via nodev0": "no such device",
		"trace app00 web00 --port 80 --from-port 0":    "--from-port",
		"trace app00 web00 --port 80 --wait -1s":       "--wait",
		"trace app00 ff02::1 --port 80":                "one host",
		"trace app00 web00 --protocol icmp --port 80":  "icmp has no ports",
	} {
		out, errs, status := real(w.t, w.Node, strings.Fields(line)...)
		if status != 2 || out != "" || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			w.t.Errorf("%s: %d, %q, %q", line, status, out, errs)
		}
	}
}

// changesNothing compares the pinned maps, byte by byte, before and after a trace. Neighbour discovery of the kernel counts as packets
// of a pod, so it tries several times: a trace that changes something changes it each time.
func (w *traceWorld) changesNothing() {
	w.t.Helper()
	var diff string
	for range 5 {
		before := w.maps()
		for _, line := range []string{"app00 192.0.2.2 --port 9001", "192.0.2.2 node --port 8080", "app00 web00 --port 80", "app00 192.0.2.2 --port 1 --source 10.7.7.7"} {
			_, _, _ = real(w.t, w.Node, append([]string{"trace"}, strings.Fields(line)...)...)
		}
		if diff = cmp.Diff(before, w.maps()); diff == "" {
			return
		}
	}
	w.t.Errorf("a trace changes the maps (-before +after):\n%s", diff)
}

// maps are all entries of all pinned maps, but those of the ring buffer.
func (w *traceWorld) maps() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	err := w.Node.Do(func() error {
		return filepath.WalkDir("/sys/fs/bpf/sluice", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(path, "/maps/") {
				return err
			}
			m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
			if err != nil {
				return err
			}
			defer m.Close()
			if m.Type() == ebpf.RingBuf {
				return nil
			}
			name, entries := filepath.Base(path), m.Iterate()
			var key []byte
			if strings.HasPrefix(m.Type().String(), "PerCPU") || m.Type() == ebpf.LRUCPUHash {
				var values [][]byte
				for entries.Next(&key, &values) {
					all[fmt.Sprintf("%s %x", name, key)] = fmt.Sprintf("%x", values)
				}
				return entries.Err()
			}
			var value []byte
			for entries.Next(&key, &value) {
				all[fmt.Sprintf("%s %x", name, key)] = string(value)
			}
			return entries.Err()
		})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(all) < 10 {
		w.t.Fatalf("%d entries in all maps", len(all))
	}
	return all
}
