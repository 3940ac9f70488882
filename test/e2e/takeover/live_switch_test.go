// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// switched are the plugins of a node that goes from one suite to the other.
var switched = []string{"bridge", "host-local", "portmap", "firewall", "bandwidth"}

// site is a node whose plugins are exchanged in place, with pods that talk.
type site struct {
	*e2etest.World
	backend   string
	reference string // directory of upstream's plugins
	dir       string // what the runtime has for CNI_PATH
	rt        *netlab.Runtime
	talks     map[string][]*liveTalk // by pod
	pods      map[string]*e2etest.Pod
	order     []string // of the pods, as they came
}

// eachSite runs f for eBPF and for two kinds of tables. Upstream is at its
// defaults: iptables.
func eachSite(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	reference, err := testbin.Reference(t.Context(), switched...)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range append([]e2etest.Backend{{Name: "ebpf", Conf: `{"backend":"ebpf"}`}}, e2etest.NetfilterBackends()[:2]...) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			s := &site{World: e2etest.NewWorld(t), backend: b.Name, reference: reference, dir: t.TempDir(), talks: map[string][]*liveTalk{}, pods: map[string]*e2etest.Pod{}}
			s.SetBackend(b)
			e2etest.Serve(t, s.Client(), "client", ":9000")
			n := e2etest.Network{Plugins: []string{"portmap", "firewall", "bandwidth"}}
			if s.rt, err = s.Node.CNI(netlab.CNIOptions{Path: []string{s.dir}, Conflist: n.Conflist(t), Stderr: s.Stderr}); err != nil {
				t.Fatal(err)
			}
			f(t, s)
		})
	}
}

// installUpstream puts upstream's plugins into place, as a package does: each
// by a rename.
func (s *site) installUpstream() {
	s.T.Helper()
	for _, name := range switched {
		if err := e2etest.InstallFile(filepath.Join(s.reference, name), filepath.Join(s.dir, name)); err != nil {
			s.T.Fatal(err)
		}
	}
}

// installOurs puts our plugins into place, as an operator does.
func (s *site) installOurs() {
	s.T.Helper()
	e2etest.MustRun(s.T, s.Node, e2etest.Programs.Path("sluice")+" install "+s.dir)
}

// port is the hostPort of a pod.
func (s *site) port(name string) uint16 { return uint16(20000 + slices.Index(s.order, name)) }

// pod attaches one with a hostPort, every fifth with limits that leave room, and
// starts four conversations: TCP and UDP, through the hostPort and outwards.
func (s *site) pod(name string) *e2etest.Pod {
	s.T.Helper()
	s.order = append(s.order, name)
	i := len(s.order) - 1
	p := s.NewPod(s.rt, name, e2etest.TCP(int(s.port(name)), 80), e2etest.UDP(int(s.port(name)), 80))
	if i%5 == 0 {
		p.Attachment.Capabilities["bandwidth"] = e2etest.Merge(e2etest.BandwidthLimits("ingress", 500*e2etest.Megabit, 50*e2etest.Megabit), e2etest.BandwidthLimits("egress", 500*e2etest.Megabit, 50*e2etest.Megabit))
	}
	p.MustAdd()
	e2etest.Serve(s.T, p, name, ":80")
	s.pods[name] = p
	fam := e2etest.Families()[i%2]
	for _, proto := range []string{"tcp", "udp"} {
		s.startTalk(name, proto+fam.Suffix, s.Client(), e2etest.At(fam.Node(s.Client()), s.port(name)))
		s.startTalk(name, proto+fam.Suffix, p, e2etest.At(fam.Client(s.Client()), 9000))
	}
	return p
}

// successor attaches a pod with the hostPort of one that is gone.
func (s *site) successor(name, of string) {
	s.T.Helper()
	s.order = append(s.order, name)
	i := slices.Index(s.order, of)
	s.order[i], s.order[len(s.order)-1] = name, of
	p := s.NewPod(s.rt, name, e2etest.TCP(int(s.port(name)), 80), e2etest.UDP(int(s.port(name)), 80))
	p.MustAdd()
	e2etest.Serve(s.T, p, name, ":80")
	s.pods[name], s.talks[name] = p, []*liveTalk{}
}

// liveTalk is a conversation that goes on until it is ended.
type liveTalk struct {
	name   string
	talk   *e2etest.Talk
	rounds atomic.Int64
	stop   chan struct{}
	done   chan struct{}
	err    error // once done
}

func (s *site) startTalk(pod, network string, from e2etest.Place, addr string) {
	s.T.Helper()
	c, err := e2etest.Dial(from, network, "", addr)
	if err != nil {
		s.T.Fatalf("%s: %s to %s: %v", pod, network, addr, err)
	}
	f := &liveTalk{name: fmt.Sprintf("%s, %s to %s", pod, network, addr), talk: c, stop: make(chan struct{}), done: make(chan struct{})}
	if c.UDP {
		c.Timeout = netlab.Patient(time.Second)
	}
	s.T.Cleanup(f.end)
	s.talks[pod] = append(s.talks[pod], f)
	go f.run()
}

// run says something long every moment. Every answer comes, but for datagrams
// that a busy machine loses, and the server sees one and the same peer all the
// while.
func (f *liveTalk) run() {
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

func (f *liveTalk) say(word string) error {
	peer := f.talk.Answer.Peer
	err := f.talk.Send(word)
	for range 3 {
		if err == nil || !f.talk.UDP {
			break
		}
		err = f.talk.Send(word)
	}
	if err == nil && f.talk.Answer.Peer != peer {
		return fmt.Errorf("seen as %s, and then as %s", peer, f.talk.Answer.Peer)
	}
	return err
}

// end stops the conversation and waits for its last word.
func (f *liveTalk) end() {
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	<-f.done
}

// goOn waits until every conversation has gone on from now.
func (s *site) goOn(after string) {
	s.T.Helper()
	for _, name := range s.order {
		for _, f := range s.talks[name] {
			from := f.rounds.Load()
			e2etest.Eventually(s.T, 20*time.Second, func() error {
				select {
				case <-f.done:
					s.T.Fatalf("after %s: %s: %v", after, f.name, f.err)
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
	s.T.Helper()
	c := s.Client()
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			in, err := e2etest.Dial(c, proto+fam.Suffix, "", e2etest.At(fam.Node(c), s.port(name)))
			if err != nil {
				s.T.Fatalf("%s: the hostPort of %s by %s%s: %v", when, name, proto, fam.Suffix, err)
			}
			if in.Answer.Server != name || in.Answer.Peer.Addr() != fam.Client(c) {
				s.T.Errorf("%s: the hostPort of %s: %s saw %s", when, name, in.Answer.Server, in.Answer.Peer)
			}
			out, err := e2etest.Dial(s.pods[name], proto+fam.Suffix, "", e2etest.At(fam.Client(c), 9000))
			if err != nil {
				s.T.Fatalf("%s: outwards from %s by %s%s: %v", when, name, proto, fam.Suffix, err)
			}
			if out.Answer.Peer.Addr() != fam.Node(c) {
				s.T.Errorf("%s: outwards from %s: the client saw %s, want %s", when, name, out.Answer.Peer, fam.Node(c))
			}
			_, _ = in.Close(), out.Close()
		}
	}
}

// del ends the pod's conversations, then the pod.
func (s *site) del(name string) {
	s.T.Helper()
	for _, f := range s.talks[name] {
		f.end()
		if f.err != nil {
			s.T.Errorf("%s: %v", f.name, f.err)
		}
	}
	delete(s.talks, name)
	s.pods[name].MustDel()
	if err := s.pods[name].Delete(); err != nil {
		s.T.Fatal(err)
	}
}

// traces are what an attachment has on the node: the lines of a snapshot that
// name it, its addresses, ports or devices.
func (s *site) traces(node netlab.Snapshot, name string) (out []string) {
	s.T.Helper()
	p, port := s.pods[name], fmt.Sprint(s.port(name))
	for _, line := range node {
		words := strings.FieldsFunc(line, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz.:", r) })
		for _, w := range []string{p.Name, p.IP4.String(), p.IP6.String(), port, p.HostVeth()} {
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
	s.T.Helper()
	if len(s.traces(s.Snapshot(), names[0])) < 5 {
		s.T.Fatalf("a living pod has no traces: this test shows nothing")
	}
	for _, name := range names {
		s.del(name)
	}
	s.nothingOf(names, "DEL")
}

func (s *site) nothingOf(names []string, after string) {
	s.T.Helper()
	node := s.Snapshot()
	for _, name := range names {
		if left := s.traces(node, name); len(left) > 0 {
			s.T.Errorf("%s left of %s:\n%s", after, name, strings.Join(left, "\n"))
		}
	}
}

// ours reports whether the pod's record is there.
func (s *site) ours(name string) bool {
	s.T.Helper()
	return len(s.Snapshot().Grep("file /run/sluice/attachments/").Grep(name)) > 0
}

// valid are the attachments that live.
func (s *site) valid() (out []types.GCAttachment) {
	for _, name := range s.order {
		if s.talks[name] != nil {
			out = append(out, types.GCAttachment{ContainerID: name, IfName: "eth0"})
		}
	}
	return out
}

// A node of 20 pods of upstream gets our binaries while its pods talk: old
// conversations and pods live on, what is new is ours, and their DELs leave
// nothing.
func TestPrivilegedSwitchToOurs(t *testing.T) {
	eachSite(t, func(t *testing.T, s *site) {
		s.installUpstream()
		s.pod("settle")
		s.del("settle")
		var old []string
		for i := range 20 {
			old = append(old, s.pod(fmt.Sprintf("old%02d", i)).Name)
		}
		s.goOn("the start")

		s.installOurs()
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
		e2etest.MustRun(t, s.Node, e2etest.Programs.Path("sluice")+" resync")
		s.goOn("GC and sync")
		if err := young.Check(); err != nil {
			t.Errorf("CHECK of a new pod: %v", err)
		}
		for _, name := range []string{"old00", "old01"} {
			if err := s.pods[name].Check(); err != nil {
				t.Errorf("CHECK of an old pod: %v", err)
			}
		}
		s.nothingToCleanUp("with pods of both suites")

		s.leaves(old[:10]...)
		s.goOn("DEL of ten old pods")
		s.answers("old10", "after DELs")
		s.answers("young00", "after DELs")
		s.successor("again", "old03") // a port that was theirs
		s.answers("again", "in the place of an old pod")

		s.leaves(append(old[10:], "young00", "young01", "again")...)
		s.noAttachments()
		s.nothingToCleanUp("after the last DEL")
	})
}

// noAttachments checks that nothing is left of any.
func (s *site) noAttachments() {
	s.T.Helper()
	for _, line := range s.Snapshot() {
		for _, kind := range []string{"CNI-DN-", "CNI-SN-", "link veth", "link bwp", "dnat to", "masquerade comment", "/attachments/net0", "/results/net0", "/networks/net0/10.", "/networks/net0/fd"} {
			if strings.Contains(line, kind) && !strings.HasSuffix(line, "last_reserved_ip.0") {
				s.T.Errorf("left after the last DEL: %s", line)
			}
		}
	}
}

// cleanup is what "sluice cleanup" says.
func (s *site) cleanup(flags string) (out []string) {
	s.T.Helper()
	var v struct {
		Leftovers []struct {
			What, Why string
			Sweep     bool
		} `json:"leftovers"`
	}
	if err := json.Unmarshal([]byte(e2etest.MustRun(s.T, s.Node, e2etest.Programs.Path("sluice")+" cleanup -o json "+flags)), &v); err != nil {
		s.T.Fatal(err)
	}
	for _, l := range v.Leftovers {
		out = append(out, fmt.Sprintf("%s (%s) %v", l.What, l.Why, l.Sweep))
	}
	return out
}

func (s *site) nothingToCleanUp(when string) {
	s.T.Helper()
	if found := s.cleanup(""); len(found) > 0 {
		s.T.Errorf("%s, sluice cleanup finds:\n%s", when, strings.Join(found, "\n"))
	}
}

// And back: upstream's binaries are put back while our pods talk. The
// reference's DEL takes what it knows; "sluice cleanup" or our GC the rest.
func TestPrivilegedSwitchBack(t *testing.T) {
	eachSite(t, func(t *testing.T, s *site) {
		s.installUpstream()
		s.pod("theirs")
		s.del("theirs")
		s.installOurs()
		s.pod("settle")
		s.del("settle")
		before := s.SyncedSnapshot()
		var old []string
		for i := range 12 {
			old = append(old, s.pod(fmt.Sprintf("old%02d", i)).Name)
		}
		s.goOn("the start")

		s.installUpstream()
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

		// What only we know of, upstream cannot take out. It does no harm: the datapath sees that the pod's device is
		// gone, for clients and for the node's own processes, and iptables' chains have upstream's names. Only rules of nftables, which the conflist does not name, stay.
		if s.backend == "ebpf" {
			for _, fam := range e2etest.Families() {
				for _, proto := range []string{"tcp", "udp"} {
					e2etest.AssertRefused(t, s.Node, proto, e2etest.At(fam.Loopback(), s.port("old03")))
					e2etest.AssertRefused(t, s.Node, proto, e2etest.At(fam.Node(s.Client()), s.port("old03")))
				}
			}
		}
		s.successor("again", "old03")
		if s.backend != "nftables" {
			s.answers("again", "before sweep, in the place of a pod of ours")
		}
		found := s.cleanup("--yes --force")
		t.Logf("the reference's DELs left:\n%s", strings.Join(found, "\n"))
		s.nothingOf(old[:6], "the reference's DEL and our sweep")
		s.goOn("sweep")
		s.answers("old08", "after sweep")
		s.answers("again", "after sweep, in the place of a pod of ours")

		for _, name := range append(old[6:], "young00", "again") {
			s.del(name)
		}
		s.installOurs()
		if err := s.rt.GC(context.Background(), nil); err != nil {
			t.Errorf("GC: %v", err)
		}
		s.noAttachments()
		s.nothingToCleanUp("after our GC")
		if d := netlab.Diff(before.Without("file /run/sluice/netfilter"), s.SyncedSnapshot().Without("file /run/sluice/netfilter")); d != "" {
			t.Errorf("the node differs (- gone, + left behind):\n%s", d)
		}
	})
}
