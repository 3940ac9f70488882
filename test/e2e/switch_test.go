// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// switched are the plugins of a node that goes from one suite to the other.
var switched = []string{"bridge", "host-local", "portmap", "firewall", "bandwidth"}

// site is a node whose plugins are exchanged in place, with pods that talk.
type site struct {
	*world
	backend   string
	reference string // directory of the reference's plugins
	dir       string // what the runtime has for CNI_PATH
	rt        *netlab.Runtime
	flows     map[string][]*flow // by pod
	pods      map[string]*pod
	order     []string // of the pods, as they came
}

// eachSite runs f for eBPF and for two kinds of tables. The reference is at its
// defaults: iptables.
func eachSite(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	reference, err := testbin.Reference(t.Context(), switched...)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range append([]backend{{"ebpf", `{"backend":"ebpf"}`}}, netfilterBackends()[:2]...) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := &site{world: newWorld(t), backend: b.name, reference: reference, dir: t.TempDir(), flows: map[string][]*flow{}, pods: map[string]*pod{}}
			s.use(b)
			serve(t, s.Client(), "client", ":9000")
			n := network{plugins: []string{"portmap", "firewall", "bandwidth"}}
			if s.rt, err = s.Node.CNI(netlab.CNIOptions{Path: []string{s.dir}, Conflist: n.conflist(t), Stderr: s.stderr}); err != nil {
				t.Fatal(err)
			}
			f(t, s)
		})
	}
}

// layReference puts the reference's plugins into place, as a package does: each
// by a rename.
func (s *site) layReference() {
	s.t.Helper()
	for _, name := range switched {
		if err := layFile(filepath.Join(s.reference, name), filepath.Join(s.dir, name)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func layFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(out.Close(), os.Rename(to+".new", to))
}

// layOurs puts our plugins into place, as an operator does.
func (s *site) layOurs() {
	s.t.Helper()
	sh(s.t, s.Node, programs.Path("sluice")+" install "+s.dir)
}

// port is the hostPort of a pod.
func (s *site) port(name string) uint16 { return uint16(20000 + slices.Index(s.order, name)) }

// pod attaches one with a hostPort, every fifth with limits that leave room, and
// starts four conversations: TCP and UDP, through the hostPort and outwards.
func (s *site) pod(name string) *pod {
	s.t.Helper()
	s.order = append(s.order, name)
	i := len(s.order) - 1
	p := s.newPod(s.rt, name, tcp(int(s.port(name)), 80), udp(int(s.port(name)), 80))
	if i%5 == 0 {
		p.att.Capabilities["bandwidth"] = merged(limits("ingress", 500*megabit, 50*megabit), limits("egress", 500*megabit, 50*megabit))
	}
	p.mustAdd()
	serve(s.t, p, name, ":80")
	s.pods[name] = p
	fam := families()[i%2]
	for _, proto := range []string{"tcp", "udp"} {
		s.flow(name, proto+fam.suffix, s.Client(), at(fam.node(s.Client()), s.port(name)))
		s.flow(name, proto+fam.suffix, p, at(fam.client(s.Client()), 9000))
	}
	return p
}

// heir attaches a pod with the hostPort of one that is gone.
func (s *site) heir(name, of string) {
	s.t.Helper()
	s.order = append(s.order, name)
	i := slices.Index(s.order, of)
	s.order[i], s.order[len(s.order)-1] = name, of
	p := s.newPod(s.rt, name, tcp(int(s.port(name)), 80), udp(int(s.port(name)), 80))
	p.mustAdd()
	serve(s.t, p, name, ":80")
	s.pods[name], s.flows[name] = p, []*flow{}
}

// flow is a conversation that goes on until it is ended.
type flow struct {
	name   string
	talk   *talk
	rounds atomic.Int64
	stop   chan struct{}
	done   chan struct{}
	err    error // once done
}

func (s *site) flow(pod, network string, from place, addr string) {
	s.t.Helper()
	c, err := dial(from, network, "", addr)
	if err != nil {
		s.t.Fatalf("%s: %s to %s: %v", pod, network, addr, err)
	}
	f := &flow{name: fmt.Sprintf("%s, %s to %s", pod, network, addr), talk: c, stop: make(chan struct{}), done: make(chan struct{})}
	if c.udp {
		c.limit = netlab.Patient(time.Second)
	}
	s.t.Cleanup(f.end)
	s.flows[pod] = append(s.flows[pod], f)
	go f.run()
}

// run says something long every moment. Every answer comes, but for datagrams
// that a busy machine loses, and the server sees one and the same peer all the
// while.
func (f *flow) run() {
	defer close(f.done)
	defer f.talk.Close()
	word := strings.Repeat("x", 1200)
	for {
		select {
		case <-f.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		if f.err = f.say(word); f.err != nil {
			return
		}
		f.rounds.Add(1)
	}
}

func (f *flow) say(word string) error {
	peer := f.talk.answer.peer
	err := f.talk.say(word)
	for range 3 {
		if err == nil || !f.talk.udp {
			break
		}
		err = f.talk.say(word)
	}
	if err == nil && f.talk.answer.peer != peer {
		return fmt.Errorf("seen as %s, and then as %s", peer, f.talk.answer.peer)
	}
	return err
}

// end stops the conversation and waits for its last word.
func (f *flow) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	<-f.done
}

// goOn waits until every conversation has gone on from now.
func (s *site) goOn(after string) {
	s.t.Helper()
	for _, name := range s.order {
		for _, f := range s.flows[name] {
			from := f.rounds.Load()
			eventually(s.t, 20*time.Second, func() error {
				select {
				case <-f.done:
					s.t.Fatalf("after %s: %s: %v", after, f.name, f.err)
				default:
				}
				if f.rounds.Load() < from+3 {
					return fmt.Errorf("after %s: %s stands still", after, f.name)
				}
				return nil
			})
		}
	}
}

// answers opens new connections: to the pod's hostPort from outside, and from
// the pod outwards.
func (s *site) answers(name, when string) {
	s.t.Helper()
	c := s.Client()
	for _, fam := range families() {
		for _, proto := range []string{"tcp", "udp"} {
			in, err := dial(c, proto+fam.suffix, "", at(fam.node(c), s.port(name)))
			if err != nil {
				s.t.Fatalf("%s: the hostPort of %s by %s%s: %v", when, name, proto, fam.suffix, err)
			}
			if in.answer.name != name || in.answer.peer.Addr() != fam.client(c) {
				s.t.Errorf("%s: the hostPort of %s: %s saw %s", when, name, in.answer.name, in.answer.peer)
			}
			out, err := dial(s.pods[name], proto+fam.suffix, "", at(fam.client(c), 9000))
			if err != nil {
				s.t.Fatalf("%s: outwards from %s by %s%s: %v", when, name, proto, fam.suffix, err)
			}
			if out.answer.peer.Addr() != fam.node(c) {
				s.t.Errorf("%s: outwards from %s: the client saw %s, want %s", when, name, out.answer.peer, fam.node(c))
			}
			_, _ = in.Close(), out.Close()
		}
	}
}

// del ends the pod's conversations, then the pod.
func (s *site) del(name string) {
	s.t.Helper()
	for _, f := range s.flows[name] {
		f.end()
		if f.err != nil {
			s.t.Errorf("%s: %v", f.name, f.err)
		}
	}
	delete(s.flows, name)
	s.pods[name].mustDel()
	if err := s.pods[name].Delete(); err != nil {
		s.t.Fatal(err)
	}
}

// traces are what an attachment has on the node: the lines of a snapshot that
// name it, its addresses, ports or devices.
func (s *site) traces(node netlab.Snapshot, name string) (out []string) {
	s.t.Helper()
	p, port := s.pods[name], fmt.Sprint(s.port(name))
	for _, line := range node {
		words := strings.FieldsFunc(line, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz.:", r) })
		for _, w := range []string{p.Name, p.IP4.String(), p.IP6.String(), port, p.hostEnd()} {
			if slices.Contains(words, w) || strings.HasPrefix(line, "file ") && strings.Contains(line, "/"+w) {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

// leaves ends pods and checks that nothing of theirs stays.
func (s *site) leaves(names ...string) {
	s.t.Helper()
	if len(s.traces(s.snapshot(), names[0])) < 5 {
		s.t.Fatalf("a living pod has no traces: this test shows nothing")
	}
	for _, name := range names {
		s.del(name)
	}
	s.nothingOf(names, "DEL")
}

func (s *site) nothingOf(names []string, after string) {
	s.t.Helper()
	node := s.snapshot()
	for _, name := range names {
		if left := s.traces(node, name); len(left) > 0 {
			s.t.Errorf("%s left of %s:\n%s", after, name, strings.Join(left, "\n"))
		}
	}
}

// ours reports whether the pod's record is there.
func (s *site) ours(name string) bool {
	s.t.Helper()
	return len(s.snapshot().Grep("file /run/sluice/attachments/").Grep(name)) > 0
}

// valid are the attachments that live.
func (s *site) valid() (out []types.GCAttachment) {
	for _, name := range s.order {
		if s.flows[name] != nil {
			out = append(out, types.GCAttachment{ContainerID: name, IfName: "eth0"})
		}
	}
	return out
}

// A node of 20 pods of the reference gets our binaries while its pods talk: old
// conversations and pods live on, what is new is ours, and their DELs leave
// nothing.
func TestPrivilegedSwitchToOurs(t *testing.T) {
	eachSite(t, func(t *testing.T, s *site) {
		s.layReference()
		s.pod("settle")
		s.del("settle")
		var old []string
		for i := range 20 {
			old = append(old, s.pod(fmt.Sprintf("old%02d", i)).Name)
		}
		s.goOn("the start")

		s.layOurs()
		s.goOn("the exchange of the binaries")
		young := s.pod("young00")
		if !s.ours("young00") || s.ours("old00") {
			t.Fatal("the new ADD is not ours, or an old one is")
		}
		s.pod("young01")
		s.goOn("new ADDs")
		for _, name := range []string{"old00", "old07", "young00", "young01"} {
			s.answers(name, "after new ADDs")
		}
		if err := s.rt.GC(context.Background(), s.valid()); err != nil {
			t.Errorf("GC: %v", err)
		}
		sh(t, s.Node, programs.Path("sluice")+" resync")
		s.goOn("GC and sync")
		if err := young.check(); err != nil {
			t.Errorf("CHECK of a new pod: %v", err)
		}
		for _, name := range []string{"old00", "old01"} {
			if err := s.pods[name].check(); err != nil {
				t.Errorf("CHECK of an old pod: %v", err)
			}
		}
		s.nothingToSweep("with pods of both suites")

		s.leaves(old[:10]...)
		s.goOn("DEL of ten old pods")
		s.answers("old10", "after DELs")
		s.answers("young00", "after DELs")
		s.heir("again", "old03") // a port that was theirs
		s.answers("again", "in the place of an old pod")

		s.leaves(append(old[10:], "young00", "young01", "again")...)
		s.noAttachments()
		s.nothingToSweep("after the last DEL")
	})
}

// noAttachments checks that nothing is left of any.
func (s *site) noAttachments() {
	s.t.Helper()
	for _, line := range s.snapshot() {
		for _, kind := range []string{"CNI-DN-", "CNI-SN-", "link veth", "link bwp", "dnat to", "masquerade comment", "/attachments/net0", "/results/net0", "/networks/net0/10.", "/networks/net0/fd"} {
			if strings.Contains(line, kind) && !strings.HasSuffix(line, "last_reserved_ip.0") {
				s.t.Errorf("left after the last DEL: %s", line)
			}
		}
	}
}

// sweep is what "sluice cleanup" says.
func (s *site) sweep(flags string) (out []string) {
	s.t.Helper()
	var v struct {
		Leftovers []struct {
			What, Why string
			Sweep     bool
		} `json:"leftovers"`
	}
	if err := json.Unmarshal([]byte(sh(s.t, s.Node, programs.Path("sluice")+" cleanup -o json "+flags)), &v); err != nil {
		s.t.Fatal(err)
	}
	for _, l := range v.Leftovers {
		out = append(out, fmt.Sprintf("%s (%s) %v", l.What, l.Why, l.Sweep))
	}
	return out
}

func (s *site) nothingToSweep(when string) {
	s.t.Helper()
	if found := s.sweep(""); len(found) > 0 {
		s.t.Errorf("%s, sluice cleanup finds:\n%s", when, strings.Join(found, "\n"))
	}
}

// And back: the reference's binaries are put back while our pods talk. The
// reference's DEL takes what it knows; "sluice cleanup" or our GC the rest.
func TestPrivilegedSwitchBack(t *testing.T) {
	eachSite(t, func(t *testing.T, s *site) {
		s.layReference()
		s.pod("theirs")
		s.del("theirs")
		s.layOurs()
		s.pod("settle")
		s.del("settle")
		before := s.steady()
		var old []string
		for i := range 12 {
			old = append(old, s.pod(fmt.Sprintf("old%02d", i)).Name)
		}
		s.goOn("the start")

		s.layReference()
		s.goOn("the exchange of the binaries")
		s.pod("young00")
		if s.ours("young00") {
			t.Fatal("the new ADD is ours")
		}
		s.goOn("a new ADD")
		for _, name := range []string{"old00", "old07", "young00"} {
			s.answers(name, "after a new ADD")
		}
		for _, name := range old[:6] {
			s.del(name)
		}
		s.goOn("DEL of six old pods")
		s.answers("old08", "after DELs")
		s.answers("young00", "after DELs")

		// What only we know of, the reference cannot take out. It is in nobody's way: the datapath sees that the pod's device is
		// gone, and iptables' chains have the reference's names. Only rules of nftables, of which the conflist says nothing, stay.
		s.heir("again", "old03")
		if s.backend != "nftables" {
			s.answers("again", "before sweep, in the place of a pod of ours")
		}
		found := s.sweep("--yes --force")
		t.Logf("the reference's DELs left:\n%s", strings.Join(found, "\n"))
		s.nothingOf(old[:6], "the reference's DEL and our sweep")
		s.goOn("sweep")
		s.answers("old08", "after sweep")
		s.answers("again", "after sweep, in the place of a pod of ours")

		for _, name := range append(old[6:], "young00", "again") {
			s.del(name)
		}
		s.layOurs()
		if err := s.rt.GC(context.Background(), nil); err != nil {
			t.Errorf("GC: %v", err)
		}
		s.noAttachments()
		s.nothingToSweep("after our GC")
		if d := netlab.Diff(before.Without("file /run/sluice/netfilter"), s.steady().Without("file /run/sluice/netfilter")); d != "" {
			t.Errorf("the node differs (- gone, + left behind):\n%s", d)
		}
	})
}
