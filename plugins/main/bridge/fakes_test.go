// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/pkg/test/lab"
)

// fakeIPAM hands out the answer it was given and remembers who holds it.
type fakeIPAM struct {
	mu      sync.Mutex
	answer  func(n int) *types100.Result // n counts the ADDs
	addErr  error
	delErr  error
	verbErr error // of CHECK, GC and STATUS
	adds    int
	held    map[string]bool
	calls   []string
	stdin   []byte // of the last DEL
}

func (f *fakeIPAM) note(verb string, a *cniplugin.Args, kind string) string {
	key := a.ContainerID + "/" + a.IfName
	f.calls = append(f.calls, verb+" "+kind+" "+key)
	return key
}

func (f *fakeIPAM) Add(_ context.Context, a *cniplugin.Args, kind string) (*types100.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := f.note("ADD", a, kind)
	if f.held == nil {
		f.held = make(map[string]bool)
	}
	f.held[key] = true // also on failure: the caller must DEL
	f.adds++
	if f.addErr != nil {
		return nil, f.addErr
	}
	return f.answer(f.adds), nil
}

func (f *fakeIPAM) Del(_ context.Context, a *cniplugin.Args, kind string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, f.note("DEL", a, kind))
	f.stdin = a.StdinData
	return f.delErr
}

func (f *fakeIPAM) verb(verb string, a *cniplugin.Args, kind string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(verb, a, kind)
	return f.verbErr
}

func (f *fakeIPAM) Check(_ context.Context, a *cniplugin.Args, kind string) error {
	return f.verb("CHECK", a, kind)
}

func (f *fakeIPAM) GC(_ context.Context, a *cniplugin.Args, kind string) error {
	return f.verb("GC", a, kind)
}

func (f *fakeIPAM) Status(_ context.Context, a *cniplugin.Args, kind string) error {
	return f.verb("STATUS", a, kind)
}

// joiningIPAM calls a function before each ADD.
type joiningIPAM struct {
	*fakeIPAM
	before func(a *cniplugin.Args)
}

func (j joiningIPAM) Add(ctx context.Context, a *cniplugin.Args, kind string) (*types100.Result, error) {
	j.before(a)
	return j.fakeIPAM.Add(ctx, a, kind)
}

// fakeDatapath keeps endpoints as the real one does.
type fakeDatapath struct {
	mu         sync.Mutex
	eps        map[uint64]loader.Endpoint
	enableErr  error
	disableErr error
	openErr    error
	loaded     bool
	opens      int
}

func (f *fakeDatapath) Enable(_ context.Context, ep loader.Endpoint, feature loader.Feature) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.enableErr != nil {
		return f.enableErr
	}
	if feature != loader.FeatureMasquerade {
		return fmt.Errorf("unexpected feature %d", feature)
	}
	if f.eps == nil {
		f.eps = make(map[uint64]loader.Endpoint)
	}
	f.eps[ep.Ref.Owner()] = ep
	return nil
}

func (f *fakeDatapath) Disable(_ context.Context, owner uint64, _ loader.Feature) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disableErr != nil {
		return f.disableErr
	}
	delete(f.eps, owner)
	return nil
}

func (f *fakeDatapath) CheckEndpoint(_ context.Context, ep loader.Endpoint, _ loader.Feature) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if got, ok := f.eps[ep.Ref.Owner()]; !ok || fmt.Sprint(got) != fmt.Sprint(ep) {
		return fmt.Errorf("%w: have %+v, want %+v", loader.ErrDiffers, got, ep)
	}
	return nil
}

func (f *fakeDatapath) Close() error { return nil }

func (f *fakeDatapath) open(context.Context, *cniplugin.Args) (Datapath, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opens++
	if f.openErr != nil {
		return nil, f.openErr
	}
	f.loaded = true
	return f, nil
}

func (f *fakeDatapath) openExisting(context.Context, *cniplugin.Args) (Datapath, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opens++
	if f.openErr != nil {
		return nil, f.openErr
	}
	if !f.loaded {
		return nil, loader.ErrNotLoaded
	}
	return f, nil
}

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
	node *lab.Node
	ipam *fakeIPAM
	dp   *fakeDatapath
	nft  *fakeNFT
	dir  *store.Dir
	plug *cniplugin.Plugin
}

func newRig(t testing.TB) *rig {
	t.Helper()
	node, err := lab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, node: node, ipam: &fakeIPAM{answer: answer4}, dp: &fakeDatapath{}, nft: &fakeNFT{}, dir: store.Open(filepath.Join(t.TempDir(), "records"))}
	r.plug = New(Deps{IPAM: r.ipam, Records: r.dir, Open: r.dp.open, OpenExisting: r.dp.openExisting, NFT: r.nft})
	return r
}

// call makes the arguments of a verb. conf is the configuration without
// version, name and type.
func call(version, container, ifname, netns, conf string) *cniplugin.Args {
	stdin := fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"bridge"`, version)
	if conf != "" {
		stdin += "," + conf
	}
	return &cniplugin.Args{
		CmdArgs: skel.CmdArgs{ContainerID: container, IfName: ifname, Netns: netns, StdinData: []byte(stdin + "}")},
		Log:     log.NewNop(),
	}
}

func (r *rig) add(a *cniplugin.Args) (res types.Result, err error) {
	derr := r.node.Do(func() error {
		res, err = r.plug.Add(context.Background(), a)
		return nil
	})
	return res, errors.Join(derr, err)
}

func (r *rig) mustAdd(a *cniplugin.Args) *types100.Result {
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

func (r *rig) verb(f func(context.Context, *cniplugin.Args) error, a *cniplugin.Args) error {
	var err error
	if derr := r.node.Do(func() error {
		err = f(context.Background(), a)
		return nil
	}); derr != nil {
		r.t.Fatal(derr)
	}
	return err
}

func (r *rig) del(a *cniplugin.Args) error { return r.verb(r.plug.Del, a) }

// check runs CHECK with res as prevResult.
func (r *rig) check(a *cniplugin.Args, res types.Result) error {
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
func (r *rig) host(f func(h *nl.Handle) error) {
	r.t.Helper()
	r.within(r.node.NS, f)
}

func (r *rig) within(ns *lab.NS, f func(h *nl.Handle) error) {
	r.t.Helper()
	if err := ns.Do(func() error {
		h, err := nl.New()
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
func (r *rig) reach(ns *lab.NS, addr string) bool {
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
func (r *rig) links(ns *lab.NS) (names []string) {
	r.t.Helper()
	r.within(ns, func(h *nl.Handle) error {
		ls, err := h.Links()
		for _, l := range ls {
			names = append(names, l.Name)
		}
		return err
	})
	return names
}

// mustBeClean fails the test when anything of an attachment is left.
func (r *rig) mustBeClean(pods ...*lab.Pod) {
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
	if len(r.ipam.held) > 0 {
		r.t.Errorf("addresses are held: %v", r.ipam.held)
	}
	if len(r.dp.eps) > 0 {
		r.t.Errorf("the datapath has endpoints: %v", r.dp.eps)
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

func cidr(s string) net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	return net.IPNet{IP: ip, Mask: n.Mask}
}

func ipc(addr, gw string) *types100.IPConfig {
	c := &types100.IPConfig{Address: cidr(addr)}
	if gw != "" {
		c.Gateway = net.ParseIP(gw)
	}
	return c
}

func answer4(n int) *types100.Result {
	return &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{ipc(fmt.Sprintf("10.1.%d.%d/16", n/250, n%250+2), "10.1.0.1")}}
}

func answer6(n int) *types100.Result {
	return &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{ipc(fmt.Sprintf("fd00::%x/64", n+1), "fd00::1")}}
}

func answer46(n int) *types100.Result {
	r := answer4(n)
	r.IPs = append(r.IPs, answer6(n).IPs...)
	r.Routes = []*types.Route{{Dst: cidr("192.0.2.0/24")}}
	return r
}

// wantCode fails the test unless err carries the CNI code and the texts.
func wantCode(t *testing.T, err error, code uint, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want code %d", code)
	}
	obj := cnierr.From(err)
	if obj.Code != code {
		t.Errorf("code %d, want %d: %v", obj.Code, code, obj)
	}
	for _, s := range texts {
		if !strings.Contains(obj.Msg+" "+obj.Details, s) {
			t.Errorf("error %q does not say %q", obj.Error(), s)
		}
	}
}
