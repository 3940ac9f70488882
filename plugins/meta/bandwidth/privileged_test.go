// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a node with the real datapath and pods that a third party's main plugin
// might have made. The pods are routed.
type world struct {
	t       testing.TB
	lab     *netlab.Lab
	plugin  *cniskel.Plugin
	records *attachments.Dir
	pods    map[string]*netlab.Pod
	noBPF   bool // the node cannot run the datapath
	tables  bool // the node asks for another backend, and a network may not
	config  *nodeconf.Config
	logged  *log.Logger
}

func newWorld(t testing.TB) *world {
	w := &world{
		t: t, lab: netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true}),
		pods: map[string]*netlab.Pod{}, records: attachments.Open(attachments.DefaultDir), logged: log.NewNop(),
	}
	open := func(existing bool, f func(context.Context, loader.Options) (*loader.Datapath, error)) func(context.Context, *cniskel.Args) (loader.Interface, error) {
		return func(ctx context.Context, _ *cniskel.Args) (loader.Interface, error) {
			if w.noBPF || w.tables && !existing {
				return nil, loader.ErrUnavailable
			}
			dp, err := f(ctx, loader.Options{Config: w.config, Loader: ebpfload.InProcess{}})
			if err != nil {
				return nil, err
			}
			return dp, nil
		}
	}
	w.plugin = New(Deps{
		Opener: Opener{Open: open(false, loader.Open), OpenExisting: open(true, loader.OpenExisting)}, Records: w.records,
		Backend: func(*cniskel.Args) (string, error) { return "", nil },
	})
	must(t, w.lab.Node.WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
	t.Cleanup(func() { _ = w.lab.Node.Do(unload) })
	return w
}

func unload() error {
	dp, err := loader.OpenExisting(context.Background(), loader.Options{})
	if err != nil {
		return err
	}
	return errors.Join(dp.Unload(context.Background()), dp.Close())
}

func (w *world) run(lines ...string) string {
	w.t.Helper()
	var out strings.Builder
	must(w.t, w.lab.Node.Do(func() error {
		for _, l := range lines {
			text, err := netlab.Run("sh", "-c", l)
			if err != nil {
				return err
			}
			out.WriteString(text)
		}
		return nil
	}))
	return out.String()
}

// pod makes the pod with 10.1.<n>.2 and fd00:<n>::2 on eth0, whose host veth is v<n>.
func (w *world) pod(name string, n int) {
	w.t.Helper()
	w.pods[name] = w.lab.Node.PodT(w.t, name)
	must(w.t, w.pods[name].WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
	w.run(
		fmt.Sprintf("ip link add v%d type veth peer name eth0 netns %s", n, name),
		fmt.Sprintf("ip addr add 10.1.%d.1/24 dev v%d", n, n), fmt.Sprintf("ip addr add fd00:%d::1/64 dev v%d nodad", n, n),
		fmt.Sprintf("ip link set v%d up", n), fmt.Sprintf("ip -n %s link set lo up", name),
		fmt.Sprintf("ip -n %s addr add 10.1.%d.2/24 dev eth0", name, n), fmt.Sprintf("ip -n %s addr add fd00:%d::2/64 dev eth0 nodad", name, n),
		fmt.Sprintf("ip -n %s link set eth0 up", name),
		fmt.Sprintf("ip -n %s route add default via 10.1.%d.1", name, n), fmt.Sprintf("ip -n %s route add default via fd00:%d::1", name, n))
	for end := time.Now().Add(netlab.Patient(10 * time.Second)); w.run("ip -n "+name+" -6 -o addr show tentative") != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("addresses stay tentative")
		}
	}
}

// conf is a configuration for pod n, with more keys.
func conf(n int, keys string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"bandwidth",%s
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"v%d"},{"name":"eth0","sandbox":"x"}],
		"ips":[{"interface":1,"address":"10.1.%d.2/24"},{"interface":1,"address":"fd00:%d::2/64"}]}}`, keys, n, n, n)
}

func (w *world) args(pod string, stdin []byte) *cniskel.Args {
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{ContainerID: pod, IfName: "eth0", Netns: "/run/netns/" + pod, StdinData: stdin},
		Log:     w.logged,
	}
}

func (w *world) do(f func() error) { w.t.Helper(); must(w.t, w.lab.Node.Do(f)) }

func (w *world) add(pod string, stdin []byte) *types100.Result {
	w.t.Helper()
	var res *types100.Result
	w.do(func() error {
		r, err := w.plugin.Add(w.t.Context(), w.args(pod, stdin))
		if err == nil {
			res, err = types100.NewResultFromResult(r)
		}
		return err
	})
	return res
}

func (w *world) check(pod string, stdin []byte) error {
	return w.lab.Node.Do(func() error { return w.plugin.Check(w.t.Context(), w.args(pod, stdin)) })
}

// del is a DEL as poor as a runtime can make it.
func (w *world) del(pod string) {
	w.t.Helper()
	a := w.args(pod, []byte(`{"cniVersion":"1.0.0","name":"net","type":"bandwidth"}`))
	a.Netns = ""
	w.do(func() error { return w.plugin.Del(w.t.Context(), a) })
}

func (w *world) gc(valid string) {
	w.t.Helper()
	w.do(func() error {
		return w.plugin.GC(w.t.Context(), w.args("", fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[%s]}`, valid)))
	})
}

func (w *world) snapshot() netlab.Snapshot {
	w.t.Helper()
	s, err := w.lab.Node.Snapshot()
	must(w.t, err)
	return s
}

func (w *world) wantCode(err error, code uint) {
	w.t.Helper()
	if err == nil {
		w.t.Fatalf("no error, want code %d", code)
	}
	if got := cnierr.From(err); got.Code != code {
		w.t.Errorf("code %d (%s; %s), want %d", got.Code, got.Msg, got.Details, code)
	}
}

// wantRate checks one direction in one family. The client is outside of the node.
func (w *world) wantRate(pod string, egress, v6 bool, want float64) {
	w.t.Helper()
	c := w.lab.Client()
	outside, inside := netlab.IP4(c.Uplink.Client).String(), "10.1.2.2"
	if v6 {
		outside, inside = netlab.IP6(c.Uplink.Client).String(), "fd00:2::2"
	}
	name := fmt.Sprintf("egress %t, IPv6 %t", egress, v6)
	if egress {
		wantCarried(w.t, name, w.pods[pod].NS, c.NS, outside, "eth0", want)
	} else {
		wantCarried(w.t, name, c.NS, w.pods[pod].NS, inside, "eth0", want)
	}
}

func TestPrivilegedTBF(t *testing.T) {
	for _, tt := range []struct {
		name  string
		noBPF bool
		keys  string
	}{
		{name: "with the datapath", keys: `"backend":"tbf",` + limits},
		{name: "without the datapath", noBPF: true, keys: limits},
		{name: "subnets", keys: `"backend":"tbf","shapedSubnets":["0.0.0.0/0","::/0"],` + limits},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.noBPF = tt.noBPF
			w.pod("a", 2)
			c := conf(2, tt.keys)
			w.add("a", c) // the first one loads the datapath
			w.del("a")
			before := w.snapshot()

			res := w.add("a", c)
			if n := len(res.Interfaces); n != 3 || !isIFBName(res.Interfaces[2].Name) || res.Interfaces[2].Mac == "" {
				t.Errorf("interfaces %+v", res.Interfaces)
			}
			ifb := res.Interfaces[2].Name
			if got := w.run("ip -6 addr show dev "+ifb, "ip -6 route show table all dev "+ifb); got != "" {
				t.Errorf("the kernel walks this whenever a device of the node comes or goes:\n%s", got)
			}
			w.add("a", c) // again
			must(t, w.check("a", c))
			for _, v6 := range []bool{false, true} {
				w.wantRate("a", false, v6, ingressMbit)
				w.wantRate("a", true, v6, egressMbit)
			}
			w.del("a")
			w.del("a")
			if diff := netlab.DiffSoon(before, w.snapshot); diff != "" {
				t.Errorf("left behind:\n%s", diff)
			}
		})
	}
}

func TestPrivilegedEDT(t *testing.T) {
	require.Qdisc(t, "fq")
	for _, tt := range []struct{ name, keys string }{
		{"auto", limits},
		{"egress only", `"egressRate":2000000,"egressBurst":1000000,`},
		{"shaped subnets", `"backend":"edt","shapedSubnets":["0.0.0.0/0","::/0"],` + limits},
		{"unshaped subnets", `"backend":"edt","unshapedSubnets":["198.18.0.0/15","2001:db8:ffff::/64"],` + limits},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.pod("a", 2)
			c := conf(2, tt.keys)
			w.add("a", c)
			w.del("a")
			before := w.snapshot()

			if res := w.add("a", c); len(res.Interfaces) != 2 {
				t.Errorf("interfaces %+v", res.Interfaces)
			}
			w.add("a", c) // again
			must(t, w.check("a", c))
			for _, v6 := range []bool{false, true} {
				if strings.Contains(tt.keys, "ingressRate") {
					w.wantRate("a", false, v6, ingressMbit)
				}
				w.wantRate("a", true, v6, egressMbit)
			}
			if n := w.policed(); n != 0 {
				t.Errorf("the policer dropped %d packets of an honest pod", n)
			}
			w.del("a")
			w.del("a")
			if diff := netlab.DiffSoon(before, w.snapshot); diff != "" {
				t.Errorf("left behind:\n%s", diff)
			}
			if q := w.run("tc -n a qdisc show dev eth0"); strings.Contains(q, "fq") || strings.Contains(q, "clsact") {
				t.Errorf("left in the pod: %s", q)
			}
		})
	}
}
