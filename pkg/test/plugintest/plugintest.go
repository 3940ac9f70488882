// SPDX-License-Identifier: Apache-2.0

// Package plugintest runs one plugin in the test's own process. A Rig is a node
// and pods of netlab with fakes of what the plugin calls; a Caller has fakes only;
// a World is a node with the real datapath. It is for the tests of a plugin's
// package. Suites that judge the binaries are in test/.
package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Rig is a node with one client on its eth0, and the plugin on it.
type Rig struct {
	*netlab.Lab
	T    testing.TB
	IPAM *IPAM
	DP   *loadertest.Datapath
	Dir  *attachments.Dir
	// Plug is the plugin under test; the caller makes it of the fields above.
	Plug *cniskel.Plugin
}

// New makes the world, without a plugin. It goes with the test.
func New(t testing.TB) *Rig {
	t.Helper()
	return &Rig{
		Lab: netlab.NewT(t), T: t,
		IPAM: &IPAM{Answer: Answer46, Held: make(map[string]bool)},
		DP:   &loadertest.Datapath{Only: loader.FeatureMasquerade},
		Dir:  attachments.Open(filepath.Join(t.TempDir(), "records")),
	}
}

// Pod makes a namespace on the node.
func (r *Rig) Pod(name string) *netlab.Pod {
	r.T.Helper()
	return r.Node.PodT(r.T, name)
}

// Call describes a verb's call. conf holds the keys of the configuration but for
// version, name ("net1") and type.
type Call struct {
	Version   string // "1.1.0"
	Container string // "c1"
	IfName    string // "eth0"
	Netns     string
	Args      string // CNI_ARGS
	Conf      map[string]any
}

// Args makes what the verb gets.
func (r *Rig) Args(c Call) *cniskel.Args {
	r.T.Helper()
	conf := map[string]any{"cniVersion": or(c.Version, "1.1.0"), "name": "net1", "type": r.Plug.Name}
	for k, v := range c.Conf {
		if v == nil {
			delete(conf, k)
		} else {
			conf[k] = v
		}
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		r.T.Fatal(err)
	}
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{ContainerID: or(c.Container, "c1"), IfName: or(c.IfName, "eth0"), Netns: c.Netns, Args: c.Args, StdinData: stdin},
		Log:     log.NewNop(),
	}
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// Add runs ADD on the node.
func (r *Rig) Add(c Call) (res types.Result, err error) {
	r.T.Helper()
	a := r.Args(c)
	derr := r.Node.Do(func() error {
		res, err = r.Plug.Add(context.Background(), a)
		return nil
	})
	return res, errors.Join(derr, err)
}

// MustAdd is Add that has to succeed; the result is of the newest version.
func (r *Rig) MustAdd(c Call) *types100.Result {
	r.T.Helper()
	res, err := r.Add(c)
	if err != nil {
		r.T.Fatalf("ADD: %v", err)
	}
	newest, err := types100.NewResultFromResult(res)
	if err != nil {
		r.T.Fatal(err)
	}
	return newest
}

// Verb runs one of the plugin's other verbs on the node.
func (r *Rig) Verb(f func(context.Context, *cniskel.Args) error, c Call) (err error) {
	r.T.Helper()
	a := r.Args(c)
	if derr := r.Node.Do(func() error {
		err = f(context.Background(), a)
		return nil
	}); derr != nil {
		r.T.Fatal(derr)
	}
	return err
}

// Del runs DEL.
func (r *Rig) Del(c Call) error {
	r.T.Helper()
	return r.Verb(r.Plug.Del, c)
}

// Check runs CHECK with res as prevResult.
func (r *Rig) Check(c Call, res types.Result) error {
	r.T.Helper()
	return r.Verb(r.Plug.Check, c.With("prevResult", res))
}

// With returns the call with one key of the configuration changed, taken away
// for nil.
func (c Call) With(key string, value any) Call {
	conf := map[string]any{}
	for k, v := range c.Conf {
		conf[k] = v
	}
	conf[key] = value
	c.Conf = conf
	return c
}

// In runs f with a handle in a namespace.
func (r *Rig) In(ns *netlab.NS, f func(h *rtnl.Handle) error) {
	r.T.Helper()
	if err := ns.Do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h)
	}); err != nil {
		r.T.Fatal(err)
	}
}

// Change runs f with a handle and a link of a namespace.
func (r *Rig) Change(ns *netlab.NS, name string, f func(h *rtnl.Handle, l rtnl.Link) error) {
	r.T.Helper()
	r.In(ns, func(h *rtnl.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return f(h, l)
	})
}

// Link returns a link of a namespace.
func (r *Rig) Link(ns *netlab.NS, name string) (l rtnl.Link) {
	r.T.Helper()
	r.Change(ns, name, func(_ *rtnl.Handle, found rtnl.Link) error {
		l = found
		return nil
	})
	return l
}

// IP runs an ip(8) command line in a namespace, for what nl does not do.
func (r *Rig) IP(ns *netlab.NS, line string) string {
	r.T.Helper()
	return ns.IPT(r.T, line)
}

// Links returns the names of the namespace's devices.
func (r *Rig) Links(ns *netlab.NS) (names []string) {
	r.T.Helper()
	r.In(ns, func(h *rtnl.Handle) error {
		ls, err := h.Links()
		for _, l := range ls {
			names = append(names, l.Name)
		}
		return err
	})
	return names
}

// MustBeClean fails the test when anything of an attachment is left on the node
// or in the pods.
func (r *Rig) MustBeClean(pods ...*netlab.Pod) {
	r.T.Helper()
	if got := r.Links(r.Node.NS); len(got) != 2 { // lo and eth0
		r.T.Errorf("the node has the devices %v", got)
	}
	for _, p := range pods {
		if got := r.Links(p.NS); len(got) != 1 {
			r.T.Errorf("pod %s has the devices %v", p.Name, got)
		}
	}
	if len(r.IPAM.Held) > 0 {
		r.T.Errorf("addresses are held: %v", r.IPAM.Held)
	}
	if n := r.DP.Len(); n > 0 {
		r.T.Errorf("the datapath has %d endpoints", n)
	}
	r.NoRecords()
}

// NoRecords fails the test when an attachment record is left.
func (r *Rig) NoRecords() {
	r.T.Helper()
	es, err := os.ReadDir(r.Dir.Path())
	if err != nil && !os.IsNotExist(err) {
		r.T.Error(err)
	}
	for _, e := range es {
		if e.Name() != ".lock" {
			r.T.Errorf("record %s is left", e.Name())
		}
	}
}

// CIDR parses an address with its subnet.
func CIDR(s string) net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	return net.IPNet{IP: ip, Mask: n.Mask}
}

// IP is an address of a result, with a gateway unless that is empty.
func IP(addr, gw string) *types100.IPConfig {
	c := &types100.IPConfig{Address: CIDR(addr)}
	if gw != "" {
		c.Gateway = net.ParseIP(gw)
	}
	return c
}

// Answer46 is an address of each family, the n-th, with default routes.
func Answer46(n int) *types100.Result {
	return &types100.Result{
		CNIVersion: "1.1.0",
		IPs:        []*types100.IPConfig{IP(fmt.Sprintf("10.1.0.%d/16", n+1), "10.1.0.1"), IP(fmt.Sprintf("fd00::%x/64", n+1), "fd00::1")},
		Routes:     []*types.Route{{Dst: CIDR("0.0.0.0/0")}, {Dst: CIDR("::/0")}},
		DNS:        types.DNS{Nameservers: []string{"10.1.0.53"}},
	}
}

// WantCode fails the test unless err carries the CNI code and the texts.
func WantCode(t testing.TB, err error, code uint, texts ...string) {
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
