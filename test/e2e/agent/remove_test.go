// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The runtime has another network, whose plugins get the DEL of Sluice's pods. The removal makes Sluice's: of a pod that is gone at once, by
// libcni's note or by the plugins' record, and of one that lives when it goes. Addresses come back, and no plugin of another suite is asked.
func TestPrivilegedAgentRemoveReplaced(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configure("routing: vxlan")
	n.addNode("node-b", 2, "10.244.2.0/24", "fd24:0:0:2::/64")
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	agent := n.start()
	n.awaitReady()
	rt := n.runtime()
	gone, recorded, living := n.AddPod(rt, "gone", e2etest.TCP(8080, 80)), n.AddPod(rt, "recorded"), n.AddPod(rt, "living")
	if err := recorded.ForgetAny(); err != nil {
		t.Fatal(err)
	}
	n.wantAnnotations(true)
	agent.Signal(unix.SIGTERM)
	for _, p := range []*e2etest.Pod{gone, recorded} {
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	e2etest.RunScript(t, n.World, fmt.Sprintf(`cat > %s/20-other.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp", "ipam": {"type": "host-local"}}]}
EOF
printf '#!/bin/sh\ntouch /run/asked\nexit 1\n' > %[2]s/new; chmod 755 %[2]s/new; mv %[2]s/new %[2]s/ptp`, confDir, binDir))

	kube := []string{"--kubeconfig", n.api.Kubeconfig, "--node-name", self}
	out, err := n.remove(kube...)
	if err == nil || !strings.Contains(out, "1 attachments, the first is sluice/living/eth0: attached pods need the plugins") {
		t.Errorf("with a pod that lives: %v, %s", err, out)
	}
	if n.read(network) != "" || n.routes() != "" {
		t.Errorf("the network stays beside another one:\n%s\n%s", n.read(network), n.routes())
	}
	n.wantAnnotations(false)
	if got, want := n.held(), fmt.Sprintf("[%s %s]", living.IP4, living.IP6); fmt.Sprint(got) != want {
		t.Errorf("addresses held: %s, want %s", got, want)
	}
	waiting := make(chan string, 1)
	go func() {
		out, err := n.remove(append(kube, "--wait")...)
		waiting <- fmt.Sprintf("%v, %s", err, out)
	}()
	select {
	case said := <-waiting:
		t.Fatalf("--wait does not: %s", said)
	case <-time.After(3 * time.Second):
	}
	if err := living.Delete(); err != nil {
		t.Fatal(err)
	}
	select {
	case said := <-waiting:
		if !strings.HasPrefix(said, "<nil>") {
			t.Errorf("remove --wait: %s", said)
		}
	case <-time.After(netlab.Patient(patient)):
		t.Fatal("remove --wait does not end")
	}
	if len(n.files("/run/asked*")) > 0 {
		t.Error("another suite's ptp was asked")
	}
	if n.read(confDir+"/20-other.conflist") == "" || !strings.Contains(n.read(binDir+"/ptp"), "asked") {
		t.Error("files of the other network are gone")
	}
	e2etest.RunScript(t, n.World, "rm "+binDir+"/ptp")
	n.wantRemoved()
	// The DaemonSet's container does it again, now and then.
	if out, err := n.remove(kube...); err != nil {
		t.Errorf("remove, again: %v, %s", err, out)
	}
	n.wantRemoved()
}

// loaded says that programs are in the kernel.
func (n *node) loaded() bool {
	n.T.Helper()
	var status struct{ Loaded bool }
	if err := n.sluice(&status, "status"); err != nil {
		n.T.Error(err)
	}
	return status.Loaded
}

// held are the addresses that host-local holds for the network.
func (n *node) held() (addrs []string) {
	for _, f := range n.files("/var/lib/cni/networks/sluice") {
		if strings.Trim(f, "0123456789abcdef.:") == "" {
			addrs = append(addrs, f)
		}
	}
	return addrs
}

// wantRemoved wants nothing of Sluice on the node, but its configuration.
func (n *node) wantRemoved() {
	n.T.Helper()
	if n.loaded() {
		n.T.Error("the datapath is left")
	}
	left := append(n.files(binDir), n.held()...)
	for _, dir := range []string{"/var/lib/cni/results", "/run/sluice/attachments", "/var/lib/sluice"} {
		for _, f := range n.files(dir) {
			left = append(left, filepath.Join(dir, f))
		}
	}
	if got := n.read(network) + n.routes(); len(left) > 0 || got != "" {
		n.T.Errorf("left: %v\n%s", left, got)
	}
}

// wantAnnotations wants annotations of an agent in mode vxlan, or none.
func (n *node) wantAnnotations(there bool) {
	n.T.Helper()
	e2etest.Eventually(n.T, patient, func() error {
		object, err := n.client.CoreV1().Nodes().Get(context.Background(), self, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found := 0
		for key := range object.Annotations {
			if strings.HasPrefix(key, "sluice-cni.io/") || strings.HasPrefix(key, "flannel.alpha.coreos.com/") {
				found++
			}
		}
		if there != (found >= 3) || !there && found > 0 {
			return fmt.Errorf("annotations: %v", object.Annotations)
		}
		return nil
	})
}
