// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// real runs a command line on the node of a lab and returns what it printed.
func real(t *testing.T, n *netlab.Node, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	err := n.Do(func() error {
		status = newApp(&out, &errs).run(t.Context(), args)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), status
}

// realJSON runs a command line with -o json and decodes what it printed.
func realJSON[T any](t *testing.T, n *netlab.Node, args ...string) (v T) {
	t.Helper()
	out, errs, status := real(t, n, append(args, "-o", "json")...)
	if status != 0 {
		t.Fatalf("%v: %s", args, errs)
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %v in %s", args, err, out)
	}
	return v
}

// publish makes a pod on a routed veth and publishes its port 80 as 8080.
func publish(t *testing.T, l *netlab.Lab, ref attachments.ID) {
	t.Helper()
	p := l.Node.PodT(t, "web")
	do := func(f func() error) {
		t.Helper()
		if err := l.Node.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	do(func() error {
		_, err := netlab.Run("sh", "-ec", `ip link add v0 type veth peer name eth0 netns web
			ip addr add 10.1.0.1/24 dev v0; ip link set v0 up
			ip -n web link set lo up; ip -n web addr add 10.1.0.2/24 dev eth0; ip -n web link set eth0 up
			ip -n web route add default via 10.1.0.1`)
		return err
	})
	do(func() error {
		dp, err := loader.Open(t.Context(), loader.Options{Loader: ebpfload.InProcess{}})
		if err != nil {
			return err
		}
		defer dp.Close()
		ep, err := loader.Resolve(t.Context(), p.Path, "eth0")
		if err != nil {
			return err
		}
		ep.Ref = ref
		if err := attachments.Open(attachments.DefaultDir).Complete(ref, "portmap", nil); err != nil {
			return err
		}
		if err := dp.Enable(t.Context(), ep, loader.FeaturePublish); err != nil {
			return err
		}
		return dp.SetHostPorts(t.Context(), ref.Owner(), nil, []hostport.Mapping{{
			Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: 6, Port: 8080}, PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80, SNAT: true,
		}})
	})
	stop, err := p.ServeHTTP("10.1.0.2:80", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
}

// asNobody makes sure that who may not look at the pins does not hear that there are none.
func asNobody(t *testing.T, n *netlab.Node) {
	t.Helper()
	for _, line := range []string{"endpoints", "resync", "unload --force"} {
		var out, errs bytes.Buffer
		status := 0
		if err := n.Do(func() error { // on a thread of its own; with the user go the capabilities for files
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				return err
			}
			status = newApp(&out, &errs).run(t.Context(), strings.Fields(line))
			_, err := unix.SetfsuidRetUid(0)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if status != 1 || !strings.Contains(errs.String(), "run this as root") {
			t.Errorf("%s as nobody: %d, %s%s", line, status, &out, &errs)
		}
	}
}

func TestPrivilegedSluice(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	if st := realJSON[statusView](t, l.Node, "status"); st.Loaded {
		t.Errorf("a fresh node is loaded: %+v", st)
	}

	publish(t, l, webRef)
	asNobody(t, l.Node)
	conn, err := l.Client().DialContext(t.Context(), "tcp", "192.0.2.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) // open while we look: a flow goes with its connection

	st := realJSON[statusView](t, l.Node, "status")
	if !st.Loaded || st.Backend != "ebpf" || st.Reason == "" || st.Endpoints != 1 || len(st.Attachments) != 1 || len(st.Maps) == 0 {
		t.Errorf("status: %+v", st)
	}
	roles := map[string]bool{}
	for _, d := range st.Devices {
		roles[d.Role] = true
		if !d.ok() || len(d.Programs) != 2 {
			t.Errorf("device %+v", d)
		}
	}
	if !roles["uplink"] || !roles["pod"] {
		t.Errorf("devices: %+v", st.Devices)
	}
	wantJoined(t, l.Node)
	for _, args := range []string{"status", "status -w", "hostports", "conntrack list", "conntrack list -w", "endpoints", "resync"} {
		out, errs, status := real(t, l.Node, strings.Fields(args)...)
		if status != 0 || errs != "" {
			t.Errorf("%s: exit status %d, %s", args, status, errs)
		}
		t.Logf("sluice %s\n%s", args, out)
	}

	if _, errs, status := real(t, l.Node, "unload"); status != 1 || !strings.Contains(errs, "1 attachment would lose") {
		t.Errorf("unload in use: exit status %d, %q", status, errs)
	}
	if out, errs, status := real(t, l.Node, "unload", "--force"); status != 0 {
		t.Errorf("unload: %s%s", out, errs)
	}
	snapshot, err := l.Node.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"sl_", "/sys/fs/bpf/sluice"} {
		if lines := snapshot.Grep(left); len(lines) > 0 {
			t.Errorf("left after unload:\n%s", lines)
		}
	}
	if st := realJSON[statusView](t, l.Node, "status"); st.Loaded {
		t.Error("still loaded")
	}
}

// The programs can be loaded before the first pod. Its ADD then loads nothing.
func TestPrivilegedResyncLoads(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	if v := realJSON[doneView](t, l.Node, "resync"); v.Done || v.Loaded || realJSON[statusView](t, l.Node, "status").Loaded {
		t.Errorf("resync without --load: %+v", v)
	}
	if v := realJSON[doneView](t, l.Node, "resync", "--load"); !v.Done || v.Loaded {
		t.Errorf("resync --load: %+v", v)
	}
	before := realJSON[statusView](t, l.Node, "status")
	if !before.Loaded || before.Endpoints != 0 || len(before.HostAddresses) == 0 {
		t.Errorf("status: %+v", before)
	}
	publish(t, l, webRef)
	after := realJSON[statusView](t, l.Node, "status")
	if !after.Decided.Equal(before.Decided) || after.Endpoints != 1 {
		t.Errorf("loaded at %v, and with the first pod at %v, with %d pods", before.Decided, after.Decided, after.Endpoints)
	}
	if v := realJSON[doneView](t, l.Node, "resync", "--load"); !v.Done || !v.Loaded {
		t.Errorf("resync --load of a loaded node: %+v", v)
	}
}

// The bpffs is unmounted and mounted again, and the programs are loaded anew: the pods of before have lost what they had, and that is said.
func TestPrivilegedResyncAfterLostPins(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	if err := l.Node.Do(func() error {
		return attachments.Open(attachments.DefaultDir).Complete(webRef, "bridge", map[string]string{"masquerade": "ebpf"})
	}); err != nil {
		t.Fatal(err)
	}
	place := realJSON[statusView](t, l.Node, "status").PinPath
	if err := l.Node.Do(func() error { return os.RemoveAll(place) }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, errs, status := real(t, l.Node, "resync", "--load")
		if status != 1 || !strings.Contains(errs, webRef.String()) {
			t.Errorf("resync --load: exit status %d, %s", status, errs)
		}
	}
	if st := realJSON[statusView](t, l.Node, "status"); !st.Loaded || st.Endpoints != 0 {
		t.Errorf("status: loaded %t, %d pods", st.Loaded, st.Endpoints)
	}
}

// wantJoined checks that ports, flows and endpoints name their attachment.
func wantJoined(t *testing.T, n *netlab.Node) {
	t.Helper()
	ports := realJSON[[]hostPortView](t, n, "hostports")
	flows := realJSON[[]flowView](t, n, "conntrack", "list", "--kind", "hostport")
	endpoints := realJSON[[]endpointView](t, n, "endpoints", "--container", webRef.ContainerID[:6])
	if len(ports) != 1 || len(flows) != 1 || len(endpoints) != 1 {
		t.Fatalf("%d ports, %d flows, %d endpoints", len(ports), len(flows), len(endpoints))
	}
	for _, o := range []ownerView{ports[0].Owner, flows[0].Owner, endpoints[0].Owner} {
		if o.ContainerID != webRef.ContainerID || o.Network != webRef.Network || o.IfName != webRef.IfName {
			t.Errorf("owner %+v", o)
		}
	}
	f := flows[0]
	if f.Pod.String() != "10.1.0.2:80" || f.Remote.Addr().String() != "192.0.2.2" || f.Outside.String() != "192.0.2.1:8080" ||
		f.OpenedBy != "remote" || f.RxBytes == 0 || f.TxBytes == 0 {
		t.Errorf("flow %+v", f)
	}
	if endpoints[0].RxPackets == 0 || endpoints[0].Device != "v0" {
		t.Errorf("endpoint %+v", endpoints[0])
	}
}
