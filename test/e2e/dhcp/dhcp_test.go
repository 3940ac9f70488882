// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The DHCP server's side of the bridge that pods are put on.
const (
	dhcpBridge  = "dhcp0"
	dhcpGateway = "10.77.0.1"
)

var dhcpNet = netip.MustParsePrefix("10.77.0.0/24")

// dhcpWorld is a node with a bridge, a DHCP server on it and our daemon.
type dhcpWorld struct {
	*e2etest.World
	dir    string
	rt     *netlab.Runtime
	daemon *e2etest.Process
	server *e2etest.Process // dnsmasq, or kea
}

func (w *dhcpWorld) socket() string { return filepath.Join(w.dir, "dhcp.sock") }

// newDHCPWorld looks for plugins in the given directories, then among ours.
func newDHCPWorld(t *testing.T, ipam string, path ...string) *dhcpWorld {
	t.Helper()
	w := &dhcpWorld{World: e2etest.NewWorld(t), dir: t.TempDir()}
	for _, args := range []string{
		"link add " + dhcpBridge + " address 02:00:00:00:77:01 type bridge", "addr add " + dhcpGateway + "/24 dev " + dhcpBridge, "link set " + dhcpBridge + " up",
		// A bridge without a port has no carrier, and Kea does not listen there.
		"link add lan0 type veth peer name lan1", "link set lan0 master " + dhcpBridge + " up", "link set lan1 up",
	} {
		if err := w.Node.Do(func() error { _, err := netlab.Run("ip", strings.Fields(args)...); return err }); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.rt, err = w.Node.CNI(netlab.CNIOptions{
		Path: append(path, e2etest.Programs.Dir), Stderr: w.Stderr,
		Conflist: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"bridge","bridge":%q,"ipam":{"type":"dhcp","daemonSocketPath":%q%s}},{"type":"firewall"}]}`,
			dhcpBridge, w.socket(), ipam),
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

// startDaemon runs our daemon and waits until it answers.
func (w *dhcpWorld) startDaemon(flags ...string) {
	w.T.Helper()
	args := []string{"daemon", "-socketpath", w.socket(), "-statedir", filepath.Join(w.dir, "state"), "-pidfile", filepath.Join(w.dir, "pid"), "-timeout", "2s", "-resendtimeout", "6s"}
	w.daemon = w.Start(filepath.Join(e2etest.Programs.Dir, "dhcp"), append(args, flags...)...)
	w.eventually("the daemon answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), e2etest.VerbTimeout)
		defer cancel()
		return w.rt.Status(ctx) == nil
	})
}

func (w *dhcpWorld) eventually(what string, cond func() bool) {
	w.T.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.T.Fatalf("never: %s", what)
		}
	}
}

func (w *dhcpWorld) dnsmasq() (leases func() string) {
	w.T.Helper()
	file := filepath.Join(w.dir, "dnsmasq.leases")
	if err := os.WriteFile(file, nil, 0o666); err != nil { // dnsmasq may drop its privileges
		w.T.Fatal(err)
	}
	w.server = w.Start("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--user=root", "--group=root", "--log-dhcp", "--log-facility=-",
		"--interface="+dhcpBridge, "--bind-interfaces", "--except-interface=lo", "--dhcp-authoritative", "--no-ping",
		"--dhcp-range=10.77.0.10,10.77.0.99,255.255.255.0,1h", "--dhcp-option=option:router,"+dhcpGateway,
		"--dhcp-option=121,10.78.0.0/16,10.77.0.2,0.0.0.0/0,"+dhcpGateway, "--dhcp-leasefile="+file)
	return func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			w.T.Fatal(err)
		}
		return string(b)
	}
}

// The life of a lease with dnsmasq: what the pod gets, what the server knows,
// the daemon's restart, CHECK, DEL, GC.
func TestPrivilegedDHCP(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, `,"priority":5,"request":[{"option":"121"}],"provide":[{"option":"host-name","fromArg":"K8S_POD_NAME"}]`)
	leases := w.dnsmasq()
	w.startDaemon()
	web := w.NewPod(w.rt, "web")
	web.Attachment.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "podname"}}
	web.MustAdd()
	if !dhcpNet.Contains(web.IP4) || !strings.Contains(leases(), web.IP4.String()+" podname") {
		t.Fatalf("address %v; the server knows:\n%s", web.IP4, leases())
	}
	other := w.AddPod(w.rt, "other")
	wantRoutes(t, web, "default via 10.77.0.1 dev eth0 metric 5", "10.78.0.0/16 via 10.77.0.2 dev eth0 metric 5")
	e2etest.Serve(t, web, "web", ":80")
	if got := e2etest.Ask(t, other, "tcp", e2etest.At(web.IP4, 80)); got.Server != "web" || got.Peer.Addr() != other.IP4 {
		t.Errorf("answered by %s, which saw %s", got.Server, got.Peer)
	}
	e2etest.MustCheck(t, web)

	// Leases outlive the daemon, however it ended.
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		w.daemon.Signal(sig)
		w.startDaemon()
		e2etest.MustCheck(t, web)
	}
	if n := strings.Count(leases(), "10.77.0."); n != 2 {
		t.Errorf("%d leases, want 2:\n%s", n, leases())
	}

	web.MustDel()
	web.MustDel()
	w.eventually("the released address is free", func() bool { return !strings.Contains(leases(), web.IP4.String()+" ") })

	// GC releases what is not valid.
	ctx, cancel := context.WithTimeout(t.Context(), e2etest.VerbTimeout)
	defer cancel()
	if err := w.rt.ForgetCache(other.Attachment); err != nil {
		t.Fatal(err)
	}
	if err := w.rt.GC(ctx, nil); err != nil {
		t.Fatal(err)
	}
	w.eventually("no lease is left", func() bool { return strings.TrimSpace(leases()) == "" })
	if left, err := os.ReadDir(filepath.Join(w.dir, "state")); err != nil || len(left) != 0 {
		t.Errorf("the daemon remembers %v, %v", left, err)
	}
	w.daemon.Signal(unix.SIGTERM)
	for _, file := range []string{"dhcp.sock", "pid"} {
		if _, err := os.Lstat(filepath.Join(w.dir, file)); err == nil {
			t.Errorf("%s is left", file)
		}
	}
}

// Without a daemon DEL works and ADD says what is missing; without a server ADD
// gives up in time and leaves nothing.
func TestPrivilegedDHCPWithout(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), e2etest.VerbTimeout)
	defer cancel()
	if err := w.rt.Status(ctx); err == nil || !strings.Contains(err.Error(), "dhcp daemon") {
		t.Errorf("STATUS without the daemon: %v", err)
	}
	p := w.NewPod(w.rt, "web")
	if err := p.TryAdd(); err == nil || !strings.Contains(err.Error(), "not reachable") {
		t.Errorf("ADD without the daemon: %v", err)
	}
	p.MustDel()
	w.startDaemon()
	if err := p.TryAdd(); err == nil || !strings.Contains(err.Error(), "no more tries") {
		t.Errorf("ADD without a server: %v", err)
	}
	p.MustDel()
	if left, err := os.ReadDir(filepath.Join(w.dir, "state")); err == nil && len(left) != 0 {
		t.Errorf("the daemon remembers %v", left)
	}
}

// Without room for files, also the daemon's, DEL releases the lease, and the daemon goes on.
func TestPrivilegedDHCPDelWithoutRoom(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, "")
	e2etest.RunScript(t, w.World, "mkdir /run/leases; mount -t tmpfs -o size=8M none /run/leases")
	leases := w.dnsmasq()
	w.startDaemon("-statedir", "/run/leases")
	p, gone := w.AddPod(w.rt, "web"), w.AddPod(w.rt, "gone")
	e2etest.RunScript(t, w.World, "mount -o remount,ro /sys/fs/bpf; mount -o remount,size=8M /run; for d in /run /run/leases; do dd if=/dev/zero of=$d/fill bs=4k 2>/dev/null || true; done")
	if err := gone.Delete(); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*e2etest.Pod{p, p, gone, gone} {
		if err := q.TryDel(); err != nil {
			t.Errorf("DEL of %s: %v", q.Name, err)
		}
	}
	w.eventually("the released address is free", func() bool { return !strings.Contains(leases(), p.IP4.String()+" ") })
	e2etest.RunScript(t, w.World, "mount -o remount,rw /sys/fs/bpf; rm -f /run/fill /run/leases/fill; rm -rf /run/mount")
	again := w.AddPod(w.rt, "again")
	again.MustDel()
	left := e2etest.MustRun(t, w.Node, "ls /run/leases")
	if strings.TrimSpace(left) != "" {
		t.Errorf("the daemon remembers %s", left)
	}
	w.daemon.Signal(unix.SIGTERM)
}

// kea runs Kea's DHCPv4 server with leases of that many seconds.
func (w *dhcpWorld) kea(seconds int) (leases func() string) {
	w.T.Helper()
	file, conf := filepath.Join(w.dir, "kea.csv"), filepath.Join(w.dir, "kea.json")
	b, err := json.Marshal(map[string]any{"Dhcp4": map[string]any{
		"interfaces-config": map[string]any{"interfaces": []string{dhcpBridge}},
		"lease-database":    map[string]any{"type": "memfile", "persist": true, "name": file, "lfc-interval": 0},
		"valid-lifetime":    seconds, "renew-timer": seconds / 4, "rebind-timer": seconds / 2,
		"subnet4": []any{map[string]any{
			"id": 1, "subnet": dhcpNet.String(), "pools": []any{map[string]any{"pool": "10.77.0.10 - 10.77.0.99"}},
			"option-data": []any{map[string]any{"name": "routers", "data": dhcpGateway}, map[string]any{"name": "domain-name-servers", "data": dhcpGateway}},
		}},
		"loggers": []any{map[string]any{"name": "kea-dhcp4", "severity": "INFO", "output_options": []any{map[string]any{"output": "stdout"}}}},
	}})
	if err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(conf, b, 0o600); err != nil {
		w.T.Fatal(err)
	}
	w.T.Setenv("KEA_PIDFILE_DIR", w.dir)
	w.T.Setenv("KEA_LOCKFILE_DIR", w.dir)
	w.server = w.Start("kea-dhcp4", "-c", conf)
	w.eventually("kea is ready", func() bool { return bytes.Contains([]byte(w.server.Out.String()), []byte("DHCP4_STARTED")) })
	return func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			return ""
		}
		return string(b)
	}
}

// Short leases of Kea: they are renewed, also after the daemon was away.
func TestPrivilegedDHCPRenewal(t *testing.T) { // not parallel: sets environment variables for the server
	w := newDHCPWorld(t, "")
	leases := w.kea(12)
	w.startDaemon()
	p := w.AddPod(w.rt, "web")
	if !dhcpNet.Contains(p.IP4) {
		t.Fatalf("address %v", p.IP4)
	}
	if got := p.Result.DNS.Nameservers; len(got) != 1 || got[0] != dhcpGateway {
		t.Errorf("name servers %v", got)
	}
	// Each renewal adds a line to the server's file.
	renewals := func() int { return strings.Count(leases(), p.IP4.String()+",") }
	w.eventually("the lease is renewed", func() bool { return renewals() >= 2 })
	w.daemon.Signal(unix.SIGKILL)
	before := renewals()
	time.Sleep(4 * time.Second) // beyond the renewal time
	w.startDaemon()
	w.eventually("the lease is renewed after the restart", func() bool { return renewals() > before })
	e2etest.MustCheck(t, p)
	p.MustDel()
	w.eventually("the lease is released", func() bool {
		lines := strings.Split(strings.TrimSpace(leases()), "\n")
		last := strings.Split(lines[len(lines)-1], ",")
		return len(last) > 3 && last[0] == p.IP4.String() && last[3] == "0"
	})
}

// A pod whose lease has run out has its interface down: the address may be
// another host's by now. CHECK says so and does not hang, and DEL works.
func TestPrivilegedDHCPExpiry(t *testing.T) { // not parallel: sets environment variables for the server
	w := newDHCPWorld(t, "")
	w.kea(8)
	w.startDaemon()
	p := w.AddPod(w.rt, "web")
	w.server.Signal(unix.SIGKILL)
	w.eventually("the interface is down", func() bool { return strings.Contains(e2etest.MustRun(t, p, "ip link show eth0"), "state DOWN") })
	if !strings.Contains(w.daemon.Out.String(), "lease lost") {
		t.Error("the daemon does not say why")
	}
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "lease was lost") {
		t.Errorf("CHECK: %v", err)
	}
	w.kea(8) // a server that would give it another address
	w.daemon.Signal(unix.SIGKILL)
	w.startDaemon() // which has not seen the lease go
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "lease was lost") {
		t.Errorf("CHECK with a server: %v", err)
	}
	if got := e2etest.MustRun(t, p, "ip link show eth0"); !strings.Contains(got, "state DOWN") {
		t.Errorf("CHECK took the interface up: %s", got)
	}
	p.MustDel()
	if left, err := os.ReadDir(filepath.Join(w.dir, "state")); err != nil || len(left) != 0 {
		t.Errorf("the daemon remembers %v, %v", left, err)
	}
}

// Leases on the interfaces that DHCP is for: those that are on a real network,
// whose server is no part of the node. An ipvlan has its master's MAC address, so
// answers must be broadcast.
func TestPrivilegedDHCPOnLAN(t *testing.T) {
	t.Parallel()
	device := map[string]string{"macvlan": "eth0", "ipvlan l2": "eth0", "vlan": "tagged", "host-device": "wire0", "host-device macvlan": "eth0"}
	for _, k := range e2etest.PodnsKinds() {
		dev := device[k.Name]
		if dev == "" { // no layer 2, so no DHCP
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			lease(k, t, dev)
		})
	}
}

func lease(k e2etest.PodnsKind, t *testing.T, dev string) {
	t.Helper()
	w := &dhcpWorld{World: k.NewWorld(t), dir: t.TempDir()}
	net := netip.PrefixFrom(k.ClientAddr(w.World, e2etest.Families()[0]), 24)
	w.server = w.RunIn(w.Client().NS, exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--user=root", "--group=root", "--log-facility=-",
		"--interface="+dev, "--bind-interfaces", "--except-interface=lo", "--dhcp-authoritative", "--no-ping",
		"--dhcp-range="+e2etest.NthAddr(net, 150)+","+e2etest.NthAddr(net, 160)+",255.255.255.0,1h", "--dhcp-option=option:router,"+net.Addr().String(),
		"--dhcp-leasefile="+filepath.Join(w.dir, "leases")))
	n := k.Network()
	n.IPAM = e2etest.Attributes{"type": "dhcp", "daemonSocketPath": w.socket()}
	w.rt = w.Runtime(n)
	w.startDaemon("-broadcast")
	p := w.AddPod(w.rt, "app")
	if !net.Masked().Contains(p.IP4) {
		t.Errorf("address %v", p.IP4)
	}
	e2etest.Serve(t, p, "app", ":80")
	if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(p.IP4, 80)); got.Server != "app" {
		t.Errorf("answered by %s", got.Server)
	}
	e2etest.MustCheck(t, p)
	p.MustDel()
	w.eventually("the lease is released", func() bool {
		b, err := os.ReadFile(filepath.Join(w.dir, "leases"))
		return err == nil && !strings.Contains(string(b), p.IP4.String())
	})
}

// wantRoutes compares lines of "ip route" in the pod.
func wantRoutes(t *testing.T, p *e2etest.Pod, want ...string) {
	t.Helper()
	var out string
	if err := p.Do(func() (err error) { out, err = netlab.Run("ip", "-4", "route"); return err }); err != nil {
		t.Fatal(err)
	}
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("no route %q in:\n%s", line, out)
		}
	}
}

// Every version and verb of the plugin itself, called as a main plugin calls it.
func TestPrivilegedDHCPVersions(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, "")
	leases := w.dnsmasq()
	w.startDaemon()
	p := w.Node.PodT(t, "app")
	e2etest.MustRun(t, w.Node, "ip link add port0 type veth peer name eth0 netns "+p.ProcPath())
	e2etest.MustRun(t, w.Node, "ip link set port0 up master "+dhcpBridge)
	env := map[string]string{"CNI_CONTAINERID": "app", "CNI_NETNS": p.Path, "CNI_IFNAME": "eth0"}
	nothing := map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		conf := func(more string) []byte {
			return fmt.Appendf(nil, `{"cniVersion":%q,"name":"lan","type":"bridge","ipam":{"type":"dhcp","daemonSocketPath":%q}%s}`, v, w.socket(), more)
		}
		out, err := w.CallPlugin("dhcp", "ADD", env, conf(""))
		if err != nil {
			t.Fatalf("%s: ADD: %v", v, err)
		}
		res, err := create.Create(v, []byte(out))
		if err != nil || !strings.Contains(out, `"10.77.0.`) {
			t.Fatalf("%s: %v: %s", v, err, out)
		}
		if res.Version() != v {
			t.Errorf("%s: the result is one of %s", v, res.Version())
		}
		for _, c := range []struct {
			verb string
			env  map[string]string
			more string
			ok   bool
		}{
			{"CHECK", env, `,"prevResult":` + out, v >= "0.4.0"},
			{"STATUS", nothing, "", v == "1.1.0"},
			{"GC", nothing, `,"cni.dev/valid-attachments":[{"containerID":"app","ifname":"eth0"}]`, v == "1.1.0"},
			{"DEL", env, "", true},
			{"DEL", env, "", true},
		} {
			out, err := w.CallPlugin("dhcp", c.verb, c.env, conf(c.more))
			var said *types.Error
			if c.ok && err != nil || !c.ok && (!errors.As(err, &said) || said.Code != types.ErrIncompatibleCNIVersion) {
				t.Errorf("%s: %s: %v", v, c.verb, err)
			}
			if c.ok && out != "" {
				t.Errorf("%s: %s prints %q", v, c.verb, out)
			}
		}
		w.eventually(v+": the lease is released", func() bool { return strings.TrimSpace(leases()) == "" })
	}
}
