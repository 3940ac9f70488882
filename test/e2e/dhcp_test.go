// SPDX-License-Identifier: Apache-2.0

package e2e

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

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The DHCP server's side of the bridge that pods are put on.
const (
	dhcpBridge  = "dhcp0"
	dhcpGateway = "10.77.0.1"
)

var dhcpNet = netip.MustParsePrefix("10.77.0.0/24")

// process is a program in the node's namespaces that runs until the test ends,
// is killed, or stop. It must not change its user or group (see NS.Start).
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  *lockedBuffer
	gone chan struct{}
}

// start runs a program in the node's namespaces.
func (w *world) start(name string, args ...string) *process {
	w.t.Helper()
	return w.run(exec.Command(name, args...))
}

// run is start for a command that needs more than arguments.
func (w *world) run(cmd *exec.Cmd) *process {
	w.t.Helper()
	return w.runIn(w.Node.NS, cmd)
}

// runIn is run for another place than the node.
func (w *world) runIn(ns *netlab.NS, cmd *exec.Cmd) *process {
	w.t.Helper()
	p := &process{t: w.t, cmd: cmd, out: &lockedBuffer{}, gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := ns.Start(p.cmd); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.gone)
	}()
	w.t.Cleanup(func() {
		p.signal(unix.SIGKILL)
		if w.t.Failed() {
			w.t.Logf("%s:\n%s", filepath.Base(cmd.Path), p.out)
		}
	})
	return p
}

// signal sends a signal and waits for the end.
func (p *process) signal(sig unix.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.gone:
	case <-time.After(10 * time.Second):
		p.t.Errorf("%s does not end on %v", p.cmd.Path, sig)
	}
}

// dhcpWorld is a node with a bridge, a DHCP server on it and our daemon.
type dhcpWorld struct {
	*world
	dir    string
	rt     *netlab.Runtime
	daemon *process
	server *process // dnsmasq, or kea
}

func (w *dhcpWorld) socket() string { return filepath.Join(w.dir, "dhcp.sock") }

// newDHCPWorld looks for plugins in the given directories, then among ours.
func newDHCPWorld(t *testing.T, ipam string, path ...string) *dhcpWorld {
	t.Helper()
	w := &dhcpWorld{world: newWorld(t), dir: t.TempDir()}
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
		Path: append(path, programs.Dir), Stderr: w.stderr,
		Conflist: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"bridge","bridge":%q,"ipam":{"type":"dhcp","daemonSocketPath":%q%s}},{"type":"firewall"}]}`,
			dhcpBridge, w.socket(), ipam),
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

// startDaemon runs our daemon and waits until it answers.
func (w *dhcpWorld) startDaemon(flags ...string) {
	w.t.Helper()
	args := []string{"daemon", "-socketpath", w.socket(), "-statedir", filepath.Join(w.dir, "state"), "-pidfile", filepath.Join(w.dir, "pid"), "-timeout", "2s", "-resendtimeout", "6s"}
	w.daemon = w.start(filepath.Join(programs.Dir, "dhcp"), append(args, flags...)...)
	w.eventually("the daemon answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), verbTime)
		defer cancel()
		return w.rt.Status(ctx) == nil
	})
}

func (w *dhcpWorld) eventually(what string, cond func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never: %s", what)
		}
	}
}

func (w *dhcpWorld) dnsmasq() (leases func() string) {
	w.t.Helper()
	file := filepath.Join(w.dir, "dnsmasq.leases")
	if err := os.WriteFile(file, nil, 0o666); err != nil { //nolint:gosec // dnsmasq may drop its privileges
		w.t.Fatal(err)
	}
	w.server = w.start("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--user=root", "--group=root", "--log-dhcp", "--log-facility=-",
		"--interface="+dhcpBridge, "--bind-interfaces", "--except-interface=lo", "--dhcp-authoritative", "--no-ping",
		"--dhcp-range=10.77.0.10,10.77.0.99,255.255.255.0,1h", "--dhcp-option=option:router,"+dhcpGateway,
		"--dhcp-option=121,10.78.0.0/16,10.77.0.2,0.0.0.0/0,"+dhcpGateway, "--dhcp-leasefile="+file)
	return func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
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
	web := w.newPod(w.rt, "web")
	web.att.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "podname"}}
	web.mustAdd()
	if !dhcpNet.Contains(web.IP4) || !strings.Contains(leases(), web.IP4.String()+" podname") {
		t.Fatalf("address %v; the server knows:\n%s", web.IP4, leases())
	}
	other := w.add(w.rt, "other")
	wantRoutes(t, web, "default via 10.77.0.1 dev eth0 metric 5", "10.78.0.0/16 via 10.77.0.2 dev eth0 metric 5")
	serve(t, web, "web", ":80")
	if got := ask(t, other, "tcp", at(web.IP4, 80)); got.name != "web" || got.peer.Addr() != other.IP4 {
		t.Errorf("answered by %s, which saw %s", got.name, got.peer)
	}
	mustCheck(t, web)

	// Leases outlive the daemon, however it ended.
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		w.daemon.signal(sig)
		w.startDaemon()
		mustCheck(t, web)
	}
	if n := strings.Count(leases(), "10.77.0."); n != 2 {
		t.Errorf("%d leases, want 2:\n%s", n, leases())
	}

	web.mustDel()
	web.mustDel()
	w.eventually("the released address is free", func() bool { return !strings.Contains(leases(), web.IP4.String()+" ") })

	// GC releases what is not valid.
	ctx, cancel := context.WithTimeout(t.Context(), verbTime)
	defer cancel()
	if err := w.rt.ForgetCache(other.att); err != nil {
		t.Fatal(err)
	}
	if err := w.rt.GC(ctx, nil); err != nil {
		t.Fatal(err)
	}
	w.eventually("no lease is left", func() bool { return strings.TrimSpace(leases()) == "" })
	if left, err := os.ReadDir(filepath.Join(w.dir, "state")); err != nil || len(left) != 0 {
		t.Errorf("the daemon remembers %v, %v", left, err)
	}
	w.daemon.signal(unix.SIGTERM)
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
	ctx, cancel := context.WithTimeout(t.Context(), verbTime)
	defer cancel()
	if err := w.rt.Status(ctx); err == nil || !strings.Contains(err.Error(), "dhcp daemon") {
		t.Errorf("STATUS without the daemon: %v", err)
	}
	p := w.newPod(w.rt, "web")
	if err := p.tryAdd(); err == nil || !strings.Contains(err.Error(), "not reachable") {
		t.Errorf("ADD without the daemon: %v", err)
	}
	p.mustDel()
	w.startDaemon()
	if err := p.tryAdd(); err == nil || !strings.Contains(err.Error(), "no more tries") {
		t.Errorf("ADD without a server: %v", err)
	}
	p.mustDel()
	if left, err := os.ReadDir(filepath.Join(w.dir, "state")); err == nil && len(left) != 0 {
		t.Errorf("the daemon remembers %v", left)
	}
}

// kea runs Kea's DHCPv4 server with leases of that many seconds.
func (w *dhcpWorld) kea(seconds int) (leases func() string) {
	w.t.Helper()
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
		w.t.Fatal(err)
	}
	if err := os.WriteFile(conf, b, 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.t.Setenv("KEA_PIDFILE_DIR", w.dir)
	w.t.Setenv("KEA_LOCKFILE_DIR", w.dir)
	w.server = w.start("kea-dhcp4", "-c", conf)
	w.eventually("kea is ready", func() bool { return bytes.Contains([]byte(w.server.out.String()), []byte("DHCP4_STARTED")) })
	return func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			return ""
		}
		return string(b)
	}
}

// Short leases of Kea: they are renewed, also after the daemon was away.
func TestPrivilegedDHCPRenewal(t *testing.T) { //nolint:paralleltest // sets environment variables for the server
	w := newDHCPWorld(t, "")
	leases := w.kea(12)
	w.startDaemon()
	p := w.add(w.rt, "web")
	if !dhcpNet.Contains(p.IP4) {
		t.Fatalf("address %v", p.IP4)
	}
	if got := p.result.DNS.Nameservers; len(got) != 1 || got[0] != dhcpGateway {
		t.Errorf("name servers %v", got)
	}
	// Each renewal adds a line to the server's file.
	renewals := func() int { return strings.Count(leases(), p.IP4.String()+",") }
	w.eventually("the lease is renewed", func() bool { return renewals() >= 2 })
	w.daemon.signal(unix.SIGKILL)
	before := renewals()
	time.Sleep(4 * time.Second) // beyond the renewal time
	w.startDaemon()
	w.eventually("the lease is renewed after the restart", func() bool { return renewals() > before })
	mustCheck(t, p)
	p.mustDel()
	w.eventually("the lease is released", func() bool {
		lines := strings.Split(strings.TrimSpace(leases()), "\n")
		last := strings.Split(lines[len(lines)-1], ",")
		return len(last) > 3 && last[0] == p.IP4.String() && last[3] == "0"
	})
}

// A pod whose lease has run out has its interface down: the address may be
// somebody else's by now. CHECK says so and does not hang, and DEL works.
func TestPrivilegedDHCPExpiry(t *testing.T) { //nolint:paralleltest // sets environment variables for the server
	w := newDHCPWorld(t, "")
	w.kea(8)
	w.startDaemon()
	p := w.add(w.rt, "web")
	w.server.signal(unix.SIGKILL)
	w.eventually("the interface is down", func() bool { return strings.Contains(sh(t, p, "ip link show eth0"), "state DOWN") })
	if !strings.Contains(w.daemon.out.String(), "lease lost") {
		t.Error("the daemon does not say why")
	}
	if err := p.check(); err == nil || !strings.Contains(err.Error(), "lease was lost") {
		t.Errorf("CHECK: %v", err)
	}
	w.kea(8) // a server that would give it another address
	w.daemon.signal(unix.SIGKILL)
	w.startDaemon() // which has not seen the lease go
	if err := p.check(); err == nil || !strings.Contains(err.Error(), "lease was lost") {
		t.Errorf("CHECK with a server: %v", err)
	}
	if got := sh(t, p, "ip link show eth0"); !strings.Contains(got, "state DOWN") {
		t.Errorf("CHECK took the interface up: %s", got)
	}
	p.mustDel()
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
	for _, k := range insides() {
		dev := device[k.name]
		if dev == "" { // no layer 2, so no DHCP
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			k.lease(t, dev)
		})
	}
}

func (k inside) lease(t *testing.T, dev string) {
	t.Helper()
	w := &dhcpWorld{world: k.world(t), dir: t.TempDir()}
	net := netip.PrefixFrom(k.peer(w.world, families()[0]), 24)
	w.server = w.runIn(w.Client().NS, exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--user=root", "--group=root", "--log-facility=-",
		"--interface="+dev, "--bind-interfaces", "--except-interface=lo", "--dhcp-authoritative", "--no-ping",
		"--dhcp-range="+nth(net, 150)+","+nth(net, 160)+",255.255.255.0,1h", "--dhcp-option=option:router,"+net.Addr().String(),
		"--dhcp-leasefile="+filepath.Join(w.dir, "leases")))
	n := k.network()
	n.ipam = attributes{"type": "dhcp", "daemonSocketPath": w.socket()}
	w.rt = w.runtime(n)
	w.startDaemon("-broadcast")
	p := w.add(w.rt, "app")
	if !net.Masked().Contains(p.IP4) {
		t.Errorf("address %v", p.IP4)
	}
	serve(t, p, "app", ":80")
	if got := ask(t, w.Client(), "tcp", at(p.IP4, 80)); got.name != "app" {
		t.Errorf("answered by %s", got.name)
	}
	mustCheck(t, p)
	p.mustDel()
	w.eventually("the lease is released", func() bool {
		b, err := os.ReadFile(filepath.Join(w.dir, "leases"))
		return err == nil && !strings.Contains(string(b), p.IP4.String())
	})
}

// wantRoutes compares lines of "ip route" in the pod.
func wantRoutes(t *testing.T, p *pod, want ...string) {
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

func mustCheck(t *testing.T, p *pod) {
	t.Helper()
	if err := p.check(); err != nil {
		t.Fatalf("CHECK: %v", err)
	}
}

// Every version and verb of the plugin itself, called as a main plugin calls it.
func TestPrivilegedDHCPVersions(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, "")
	leases := w.dnsmasq()
	w.startDaemon()
	p := w.Node.PodT(t, "app")
	sh(t, w.Node, "ip link add port0 type veth peer name eth0 netns "+p.ProcPath())
	sh(t, w.Node, "ip link set port0 up master "+dhcpBridge)
	env := map[string]string{"CNI_CONTAINERID": "app", "CNI_NETNS": p.Path, "CNI_IFNAME": "eth0"}
	nothing := map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		conf := func(more string) []byte {
			return fmt.Appendf(nil, `{"cniVersion":%q,"name":"lan","type":"bridge","ipam":{"type":"dhcp","daemonSocketPath":%q}%s}`, v, w.socket(), more)
		}
		out, err := w.call("dhcp", "ADD", env, conf(""))
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
			out, err := w.call("dhcp", c.verb, c.env, conf(c.more))
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
