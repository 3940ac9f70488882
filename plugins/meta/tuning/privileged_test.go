// SPDX-License-Identifier: Apache-2.0

package tuning

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

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/sysctlallow/match"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pod is a namespace with a veth end eth0, and the plugin around it.
type pod struct {
	t    *testing.T
	p    *plugin
	ns   *netns.NS
	dp   *loadertest.Datapath
	data string
	runs string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	dir := t.TempDir()
	d := &pod{t: t, dp: &loadertest.Datapath{}, data: dir + "/data", runs: dir + "/attachments"}
	d.p = &plugin{Deps{
		Records:      attachments.Open(d.runs),
		OpenExisting: func(context.Context, *cniskel.Args) (loader.Interface, error) { return d.dp, nil },
		Allowlist:    dir + "/allowlist.conf",
		Match:        match.Match,
	}}
	d.ns = newNS(t)
	d.do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		if err := h.AddVeth(rtnl.VethSpec{HostName: "peer0", PeerName: "eth0"}); err != nil {
			return err
		}
		l, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		return h.SetUp(l.Index)
	})
	return d
}

// newNS makes a namespace that lives as long as the test.
func newNS(t *testing.T) *netns.NS {
	t.Helper()
	type made struct {
		ns  *netns.NS
		err error
	}
	out := make(chan made)
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	go func() {
		var m made
		m.err = own.Do(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("network namespaces need root: %w", err)
			}
			var err error
			m.ns, err = netns.Current()
			return err
		})
		out <- m
	}()
	m := <-out
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Cleanup(m.ns.Close)
	return m.ns
}

func (d *pod) do(f func() error) {
	d.t.Helper()
	if err := d.ns.Do(f); err != nil {
		d.t.Fatal(err)
	}
}

// state is what the plugin can change, as text.
func (d *pod) state() map[string]string {
	d.t.Helper()
	s := map[string]string{}
	d.do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		s["mac"], s["mtu"], s["txqlen"] = l.MAC.String(), fmt.Sprint(l.MTU), fmt.Sprint(l.TxQLen)
		s["promisc"], s["allmulti"] = fmt.Sprint(l.Promisc), fmt.Sprint(l.AllMulti)
		for _, k := range []string{"net/core/somaxconn", "net/ipv4/conf/eth0/arp_filter"} {
			if s[k], err = sysctl.Get(k); err != nil {
				return err
			}
		}
		return nil
	})
	return s
}

const all = `,"sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.IFNAME.arp_filter":"1"},
	"mac":"02:00:00:00:00:aa","mtu":1400,"promisc":true,"allmulti":true,"txQLen":77`

func tunedState() map[string]string {
	return map[string]string{
		"mac": "02:00:00:00:00:aa", "mtu": "1400", "txqlen": "77", "promisc": "true", "allmulti": "true",
		"net/core/somaxconn": "500", "net/ipv4/conf/eth0/arp_filter": "1",
	}
}

func (d *pod) args(keys string) *cniskel.Args {
	prev := fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500},
		{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1500,"sandbox":%q}],"ips":[]}`, d.ns.Path())
	return &cniskel.Args{CmdArgs: cniskel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Netns: d.path(),
		StdinData: conf(`,"dataDir":"` + d.data + `"` + keys + prev),
	}, Log: log.NewNop()}
}

// path names the namespace by our descriptor of it.
func (d *pod) path() string { return fmt.Sprintf("/proc/self/fd/%d", d.ns.Fd()) }

func (d *pod) add(keys string) *types100.Result {
	d.t.Helper()
	r, err := d.p.add(context.Background(), d.args(keys))
	if err != nil {
		d.t.Fatalf("ADD: %v", err)
	}
	out, err := types100.GetResult(r)
	if err != nil {
		d.t.Fatal(err)
	}
	return out
}

func (d *pod) leftovers() []string {
	var files []string
	for _, dir := range []string{d.data, d.runs} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			d.t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".lock") {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
	}
	return files
}

func TestPrivilegedAddCheckDel(t *testing.T) {
	d := newPod(t)
	before := d.state()
	r := d.add(all)
	if diff := cmp.Diff(tunedState(), d.state()); diff != "" {
		t.Errorf("after ADD (-want +got):\n%s", diff)
	}
	if host, in := r.Interfaces[0], r.Interfaces[1]; host.Mac != "02:00:00:00:00:aa" || in.Mac != "02:00:00:00:00:aa" || in.Mtu != 1400 {
		t.Errorf("result: host %+v, pod %+v", host, in)
	}
	ref := attachments.ID{Network: "n", ContainerID: "c1", IfName: "eth0"}
	if got := d.dp.MACs[ref.Owner()]; got != "02:00:00:00:00:aa" {
		t.Errorf("the datapath was told %q", got)
	}
	if err := d.p.check(context.Background(), d.args(all)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	d.add(all) // again: the backup must not get the tuned values
	for i := range 2 {
		if err := d.p.del(context.Background(), d.args("")); err != nil {
			t.Errorf("DEL %d: %v", i, err)
		}
	}
	if diff := cmp.Diff(before, d.state()); diff != "" {
		t.Errorf("after DEL (-want +got):\n%s", diff)
	}
	if left := d.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if got := d.dp.MACs[ref.Owner()]; got != before["mac"] {
		t.Errorf("after DEL the datapath knows %q, want %q", got, before["mac"])
	}
}

func TestPrivilegedCheckSees(t *testing.T) {
	d := newPod(t)
	d.add(all)
	link := func(change func(h *rtnl.Handle, index int) error) func() error {
		return func() error {
			h, err := rtnl.New()
			if err != nil {
				return err
			}
			defer h.Close()
			l, err := h.LinkByName("eth0")
			if err != nil {
				return err
			}
			return change(h, l.Index)
		}
	}
	tests := []struct {
		word   string
		change func() error
	}{
		{"mac", link(func(h *rtnl.Handle, i int) error { return h.SetMAC(i, net.HardwareAddr{2, 0, 0, 0, 0, 9}) })},
		{"mtu", link(func(h *rtnl.Handle, i int) error { return h.SetMTU(i, 1300) })},
		{"promisc", link(func(h *rtnl.Handle, i int) error { return h.SetPromisc(i, false) })},
		{"allmulti", link(func(h *rtnl.Handle, i int) error { return h.SetAllMulti(i, false) })},
		{"txQLen", link(func(h *rtnl.Handle, i int) error { return h.SetTxQLen(i, 5) })},
		{"somaxconn", func() error { return sysctl.Set("net/core/somaxconn", "501") }},
	}
	for _, tt := range tests {
		d.do(tt.change)
		err := d.p.check(context.Background(), d.args(all))
		if err == nil || cnierr.From(err).Code != cnierr.CodeCheck || !strings.Contains(err.Error(), tt.word) {
			t.Errorf("%s changed: %v", tt.word, err)
		}
		d.add(all)
	}
	d.add(`,"promisc":false`)
	if err := d.p.check(context.Background(), d.args(`,"promisc":false`)); err != nil {
		t.Errorf("promisc is on for other reasons: %v", err)
	}
}

func TestPrivilegedFailedAddLeavesNothing(t *testing.T) {
	d := newPod(t)
	before := d.state()
	write(t, d.p.Allowlist, "somaxconn\narp_filter\nno_such\n")
	tests := []struct {
		name, keys string
		code       uint
	}{
		{"not allowed", `,"mtu":1400,"sysctl":{"net.ipv4.ip_forward":"1"}`, cnierr.CodeConfig},
		{"unknown sysctl", `,"mtu":1400,"sysctl":{"net.core.somaxconn":"500","net.no_such":"1"}`, cnierr.CodeConfig},
		{"value refused", `,"mtu":1400,"sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.IFNAME.arp_filter":"x"}`, cnierr.CodeConfig},
		{"mtu refused", `,"mac":"02:00:00:00:00:aa","mtu":20,"sysctl":{"net.core.somaxconn":"500"}`, cnierr.CodeKernel},
	}
	for _, tt := range tests {
		_, err := d.p.add(context.Background(), d.args(tt.keys))
		if err == nil || cnierr.From(err).Code != tt.code {
			t.Errorf("%s: %v, want code %d", tt.name, err, tt.code)
		}
		if diff := cmp.Diff(before, d.state()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if left := d.leftovers(); len(left) > 0 {
			t.Errorf("%s left: %v", tt.name, left)
		}
	}
}

// A dataDir that cannot be written is an I/O error of that key, as STATUS says it.
func TestPrivilegedDataDirRefused(t *testing.T) {
	d := newPod(t)
	d.data = filepath.Join(t.TempDir(), "file")
	write(t, d.data, "")
	before := d.state()
	_, err := d.p.add(context.Background(), d.args(`,"mtu":1400`))
	if e := cnierr.From(err); err == nil || e.Code != cnierr.CodeIO || !strings.Contains(e.Msg, `dataDir "`+d.data) {
		t.Errorf("%v, want code 5 and the key", err)
	}
	if diff := cmp.Diff(before, d.state()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod that the upstream plugin tuned is restored from its file.
func TestPrivilegedDelOfUpstream(t *testing.T) {
	d := newPod(t)
	before := d.state()
	if err := os.MkdirAll(d.data, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, d.data+"/c1_eth0.json", `{"mac":"`+before["mac"]+`","promisc":false,"mtu":1500,"allmulti":false,"txQLen":1000}`)
	d.do(func() error {
		w, err := parse(d.args(all).StdinData, "c", "", "eth0")
		if err != nil {
			return err
		}
		w.sysctls = nil
		return apply("eth0", w)
	})
	if err := d.p.del(context.Background(), d.args("")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, d.state()); diff != "" {
		t.Errorf("after DEL (-want +got):\n%s", diff)
	}
	if left := d.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A record or a backup of a pod that has gone must not reach the next one of
// its name.
func TestPrivilegedNewNamespaceSameName(t *testing.T) {
	gone, next := newPod(t), newPod(t)
	gone.add(all)
	next.data, next.p = gone.data, gone.p
	before := next.state()
	next.add(all)
	if err := next.p.del(context.Background(), next.args(all)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, next.state()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPrivilegedDelWithoutNetNS(t *testing.T) {
	for _, path := range []string{"", "/no/such/ns"} {
		d := newPod(t)
		d.add(all)
		a := d.args("")
		a.Netns, a.StdinData = path, []byte(`{"cniVersion":"1.1.0","name":"n","type":"tuning"}`)
		if err := d.p.del(context.Background(), a); err != nil {
			t.Errorf("netns %q: %v", path, err)
		}
		if left := d.leftovers(); len(left) > 0 {
			t.Errorf("netns %q left: %v", path, left)
		}
	}
}

func TestPrivilegedGC(t *testing.T) {
	d := newPod(t)
	d.add(all)
	gc := func(list string) error {
		return d.p.gc(context.Background(), &cniskel.Args{CmdArgs: cniskel.CmdArgs{StdinData: conf(list)}, Log: log.NewNop()})
	}
	if err := gc(`,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`); err != nil {
		t.Fatal(err)
	}
	if left := d.leftovers(); len(left) != 2 {
		t.Errorf("GC took a valid attachment: %v", left)
	}
	if err := gc(`,"cni.dev/valid-attachments":[]`); err != nil {
		t.Fatal(err)
	}
	if left := d.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	p := &plugin{Deps{Allowlist: t.TempDir() + "/allowlist.conf", Match: match.Match}}
	status := func() error {
		return p.status(context.Background(), &cniskel.Args{CmdArgs: cniskel.CmdArgs{StdinData: conf(`,"sysctl":{"net.core.somaxconn":"1"}`)}})
	}
	if err := status(); err != nil {
		t.Errorf("no allowlist: %v", err)
	}
	write(t, p.Allowlist, "nothing\n")
	if err := status(); err == nil {
		t.Error("STATUS says that an ADD would work; the allowlist says no")
	}
}

func TestBackupFormat(t *testing.T) {
	t.Parallel()
	on, n := true, 5
	b, err := json.Marshal(backup{MAC: "02:00:00:00:00:01", Promisc: &on, MTU: 1500, AllMulti: &on, TxQLen: &n})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b), `{"mac":"02:00:00:00:00:01","promisc":true,"mtu":1500,"allmulti":true,"txQLen":5}`; got != want {
		t.Errorf("%s\nwant the reference's %s", got, want)
	}
}

// A backup that cannot be written, or whose writer was killed, leaves no part of it for good.
func TestPartOfBackup(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "c1_eth0.json")
	if err := os.Symlink("/dev/full", file+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := writeBackup(file, backup{MTU: 1500}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%v, want ENOSPC", err)
	}
	if _, err := os.Lstat(file + ".tmp"); err == nil {
		t.Error("part of a backup is left")
	}
	write(t, file+".tmp", `{"mt`)
	if err := removeBackup(file); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(file + ".tmp"); err == nil {
		t.Error("what a killed ADD left is there still")
	}
}
