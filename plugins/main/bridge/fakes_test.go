// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// fakeNFT understands the few commands the plugin uses and, like nft, refuses
// to delete what is not there.
type fakeNFT struct {
	missing bool
	fail    error
	chains  map[string][]map[string]any // rules by chain
	handle  int
}

func (f *fakeNFT) Available() error {
	if f.missing {
		return errors.New(`exec: "nft": executable file not found in $PATH`)
	}
	return nil
}

func (f *fakeNFT) Run(_ context.Context, stdin []byte, args ...string) ([]byte, error) {
	if f.fail != nil {
		return nil, f.fail
	}
	if strings.Join(args, " ") == "-j list ruleset bridge" {
		return f.list()
	}
	var script struct {
		Nftables []map[string]map[string]map[string]any
	}
	if err := json.Unmarshal(stdin, &script); err != nil {
		return nil, err
	}
	for _, cmd := range script.Nftables {
		for verb, what := range cmd {
			for kind, o := range what {
				if err := f.apply(verb, kind, o); err != nil {
					return nil, fmt.Errorf("%s %s: %w", verb, kind, err)
				}
			}
		}
	}
	return nil, nil
}

func (f *fakeNFT) apply(verb, kind string, o map[string]any) error {
	if f.chains == nil {
		f.chains = make(map[string][]map[string]any)
	}
	switch name, _ := o["name"].(string); verb + " " + kind {
	case "add table":
	case "add chain":
		f.chains[name] = append(f.chains[name], nil...)
	case "flush chain":
		f.chains[name] = nil
	case "delete chain":
		if _, ok := f.chains[name]; !ok {
			return errors.New("no such chain")
		}
		delete(f.chains, name)
	case "add rule":
		chain := o["chain"].(string)
		if _, ok := f.chains[chain]; !ok {
			return errors.New("no such chain")
		}
		f.handle++
		o["handle"] = f.handle
		f.chains[chain] = append(f.chains[chain], o)
	case "delete rule":
		chain := o["chain"].(string)
		for i, r := range f.chains[chain] {
			if r["handle"] == int(o["handle"].(float64)) {
				f.chains[chain] = append(f.chains[chain][:i:i], f.chains[chain][i+1:]...)
				return nil
			}
		}
		return errors.New("no such rule")
	default:
		return errors.New("unknown command")
	}
	return nil
}

func (f *fakeNFT) list() ([]byte, error) {
	out := []map[string]any{{"metainfo": map[string]any{"version": "1"}}}
	for name, rules := range f.chains {
		out = append(out, map[string]any{"chain": map[string]any{"table": "nat", "name": name}})
		for _, r := range rules {
			out = append(out, map[string]any{"rule": r})
		}
	}
	return json.Marshal(map[string]any{"nftables": out})
}

// rig is a node with the plugin on it.
type rig struct {
	t    testing.TB
	node *netlab.Node
	ipam *fake.IPAM
	dp   *loadertest.Datapath
	nft  *fakeNFT
	dir  *attachments.Dir
	plug *cniskel.Plugin

	tables bool // the node's backend is nftables
}

// nftablesNode is a node whose backend is nftables. It has no tables to masquerade by.
type nftablesNode struct{ Netfilter }

func (nftablesNode) Default() string { return netfilter.NameNFTables }

func (nftablesNode) Select(context.Context, string) (netfilter.Tables, netfilter.Choice, error) {
	return nil, netfilter.Choice{}, netfilter.ErrUnusable
}

func (nftablesNode) All() []netfilter.Tables { return nil }

// newNFTablesRig is newRig on a node whose backend is nftables.
func newNFTablesRig(t testing.TB) *rig {
	r := newRig(t)
	r.tables = true
	r.plug = New(r.deps())
	return r
}

func newRig(t testing.TB) *rig {
	t.Helper()
	node, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, node: node, ipam: &fake.IPAM{Answer: answer4, Held: make(map[string]bool)}, dp: &loadertest.Datapath{Only: loader.FeatureMasquerade | loader.FeatureMACCheck}, nft: &fakeNFT{}, dir: attachments.Open(filepath.Join(t.TempDir(), "records"))}
	r.plug = New(r.deps())
	return r
}

func (r *rig) deps() Deps { return r.with(r.nft) }

// with is deps with another nft, the real one for nil.
func (r *rig) with(nft NFT) Deps {
	open, existing := fake.Openers(r.dp)
	d := Deps{
		IPAM: r.ipam, Records: r.dir, NFT: nft,
		Opener: Opener{Open: open, OpenExisting: existing},
	}
	if r.tables {
		d.Netfilter = func(*cniskel.Args) (Netfilter, error) { return nftablesNode{}, nil }
	}
	return d
}

// call makes the arguments of a verb. conf is the configuration without
// version, name and type.
func call(version, container, ifname, netns, conf string) *cniskel.Args {
	stdin := fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"bridge"`, version)
	if conf != "" {
		stdin += "," + conf
	}
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{ContainerID: container, IfName: ifname, Netns: netns, StdinData: []byte(stdin + "}")},
		Log:     log.NewNop(),
	}
}

func (r *rig) add(a *cniskel.Args) (res types.Result, err error) {
	derr := r.node.Do(func() error {
		res, err = r.plug.Add(context.Background(), a)
		return nil
	})
	return res, errors.Join(derr, err)
}

func (r *rig) mustAdd(a *cniskel.Args) *types100.Result {
	r.t.Helper()
	res, err := r.add(a)
	if err != nil {
		r.t.Fatalf("ADD: %v", err)
	}
	newest, err := types100.NewResultFromResult(res)
	if err != nil {
		r.t.Fatal(err)
	}
	return newest
}

func (r *rig) verb(f func(context.Context, *cniskel.Args) error, a *cniskel.Args) error {
	var err error
	if derr := r.node.Do(func() error {
		err = f(context.Background(), a)
		return nil
	}); derr != nil {
		r.t.Fatal(derr)
	}
	return err
}

func (r *rig) del(a *cniskel.Args) error { return r.verb(r.plug.Del, a) }

// check runs CHECK with res as prevResult.
func (r *rig) check(a *cniskel.Args, res types.Result) error {
	r.t.Helper()
	raw, err := json.Marshal(res)
	if err != nil {
		r.t.Fatal(err)
	}
	b := *a
	b.StdinData = []byte(strings.TrimSuffix(string(a.StdinData), "}") + `,"prevResult":` + string(raw) + "}")
	return r.verb(r.plug.Check, &b)
}

// host runs f with a handle in the node's namespace.
func (r *rig) host(f func(h *rtnl.Handle) error) {
	r.t.Helper()
	r.within(r.node.NS, f)
}

func (r *rig) within(ns *netlab.NS, f func(h *rtnl.Handle) error) {
	r.t.Helper()
	if err := ns.Do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h)
	}); err != nil {
		r.t.Fatal(err)
	}
}

// reach reports whether a TCP connection from ns to addr comes about.
func (r *rig) reach(ns *netlab.NS, addr string) bool {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	c, err := ns.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// links returns the names of the namespace's devices.
func (r *rig) links(ns *netlab.NS) (names []string) {
	r.t.Helper()
	r.within(ns, func(h *rtnl.Handle) error {
		ls, err := h.Links()
		for _, l := range ls {
			names = append(names, l.Name)
		}
		return err
	})
	return names
}

// mustBeClean fails the test when anything of an attachment is left.
func (r *rig) mustBeClean(pods ...*netlab.Pod) {
	r.t.Helper()
	for _, n := range r.links(r.node.NS) {
		if strings.HasPrefix(n, "veth") {
			r.t.Errorf("%s is left on the node", n)
		}
	}
	for _, p := range pods {
		if got := r.links(p.NS); len(got) != 1 {
			r.t.Errorf("%v are left in pod %s", got, p.Name)
		}
	}
	if len(r.ipam.Held) > 0 {
		r.t.Errorf("addresses are held: %v", r.ipam.Held)
	}
	if len(r.dp.Held) > 0 {
		r.t.Errorf("the datapath has endpoints: %v", r.dp.Held)
	}
	for name := range r.nft.chains {
		if name != spoofHook || len(r.nft.chains[name]) > 0 {
			r.t.Errorf("nft chain %s is left", name)
		}
	}
	es, err := os.ReadDir(r.dir.Path())
	if err != nil && !os.IsNotExist(err) {
		r.t.Error(err)
	}
	for _, e := range es {
		if e.Name() != ".lock" {
			r.t.Errorf("record %s is left", e.Name())
		}
	}
}

func answer4(n int) *types100.Result {
	return &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{fake.IP(fmt.Sprintf("10.1.%d.%d/16", n/250, n%250+2), "10.1.0.1")}}
}

func answer6(n int) *types100.Result {
	return &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{fake.IP(fmt.Sprintf("fd00::%x/64", n+1), "fd00::1")}}
}

func answer46(n int) *types100.Result {
	r := answer4(n)
	r.IPs = append(r.IPs, answer6(n).IPs...)
	r.Routes = []*types.Route{{Dst: fake.CIDR("192.0.2.0/24")}}
	return r
}
