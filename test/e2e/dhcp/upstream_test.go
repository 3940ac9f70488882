// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// referenceDHCP is a directory with nothing but upstream's dhcp.
func referenceDHCP(t *testing.T) string {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), "dhcp")
	if err != nil {
		t.Fatal(err)
	}
	only := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "dhcp"), filepath.Join(only, "dhcp")); err != nil {
		t.Fatal(err)
	}
	return only
}

// Our plugin with upstream's daemon: a lease, CHECK and DEL; the verbs that
// daemon does not know are no errors of a network that works.
func TestPrivilegedDHCPUpstreamDaemon(t *testing.T) {
	t.Parallel()
	theirs := referenceDHCP(t)
	w := newDHCPWorld(t, `,"priority":5,"request":[{"option":"121"}],"provide":[{"option":"host-name","value":"fixed"}]`)
	leases := w.dnsmasq()
	w.daemon = w.Start(filepath.Join(theirs, "dhcp"), "daemon", "-socketpath", w.socket(), "-timeout", "2s", "-resendtimeout", "6s")
	w.eventually("the reference's daemon answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), e2etest.VerbTimeout)
		defer cancel()
		return w.rt.Status(ctx) == nil
	})
	p := w.AddPod(w.rt, "web")
	if !dhcpNet.Contains(p.IP4) || !strings.Contains(leases(), p.IP4.String()+" fixed") {
		t.Fatalf("address %v; the server knows:\n%s", p.IP4, leases())
	}
	wantRoutes(t, p, "default via 10.77.0.1 dev eth0 metric 5", "10.78.0.0/16 via 10.77.0.2 dev eth0 metric 5")
	e2etest.MustCheck(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), e2etest.VerbTimeout)
	defer cancel()
	if err := w.rt.GC(ctx, []types.GCAttachment{{ContainerID: p.Attachment.ContainerID, IfName: "eth0"}}); err != nil {
		t.Errorf("GC: %v", err)
	}
	e2etest.MustCheck(t, p)
	p.MustDel()
	p.MustDel()
	// What it sends has no source address, so a server on this node never gets it.
	w.eventually("the daemon releases the lease", func() bool { return strings.Contains(w.daemon.Out.String(), "releasing lease") })
}

// Upstream's plugin with our daemon, called by our bridge: as third-party
// IPAM plugins are, by exec.
func TestPrivilegedDHCPUpstreamPlugin(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, `,"provide":[{"option":"host-name","fromArg":"K8S_POD_NAME"}]`, referenceDHCP(t))
	leases := w.dnsmasq()
	w.startDaemon()
	p := w.NewPod(w.rt, "web")
	p.Attachment.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "podname"}}
	p.MustAdd()
	if !dhcpNet.Contains(p.IP4) || !strings.Contains(leases(), p.IP4.String()+" podname") {
		t.Fatalf("address %v; the server knows:\n%s", p.IP4, leases())
	}
	e2etest.MustCheck(t, p)
	w.daemon.Signal(unix.SIGKILL)
	w.startDaemon()
	e2etest.MustCheck(t, p)
	p.MustDel()
	p.MustDel()
	w.eventually("the lease is released", func() bool { return strings.TrimSpace(leases()) == "" })
	if left, err := os.ReadDir(filepath.Join(w.dir, "state")); err != nil || len(left) != 0 {
		t.Errorf("the daemon remembers %v, %v", left, err)
	}
	// Its words for a server that does not answer are those of our daemon.
	w.server.Signal(unix.SIGTERM)
	if err := w.NewPod(w.rt, "late").TryAdd(); err == nil || !strings.Contains(err.Error(), "no more tries") {
		t.Errorf("ADD without a server: %v", err)
	}
}
