// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// containerd loses what it knows, as after the loss of its disk. The node agent removes the attachment of the pod that the API server does
// not know either. It leaves those of a pod that containerd knows, and of one that the API server knows.
func TestPrivilegedContainerdGarbage(t *testing.T) {
	t.Parallel()
	c := newContainerd(t, "", "{}")
	api := kubetest.Start(t, kubetest.Options{NS: c.Node.NS})
	client := api.Client().CoreV1()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}}}
	if _, err := client.Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: "default"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := client.Pods("default").Create(t.Context(), waiting, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.write("/etc/sluice/agent.yaml", fmt.Sprintf("paths: {binDir: %s, confDir: %s}\nnetwork: {file: 10-pods.conflist}\ngarbage: {interval: 10s}\nruntimeEndpoint: %s\n", pluginDir, confDir, containerdSocket))
	c.run("sh", "-c", fmt.Sprintf("HOME=/root %s --kubeconfig %s --node-name n >%s/agent.log 2>&1 &", programs.Path("sluice-agent"), api.Kubeconfig, stateDir))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", c.read(stateDir+"/agent.log"))
		}
	})
	c.await("the network", func() bool { return strings.Contains(c.read(confDir+"/10-pods.conflist"), "10.244.1.0/24") })

	gone, left := c.networked("gone"), c.networked("waiting")
	c.kill()
	c.run("mv", stateDir+"/content", stateDir+"/content.before")
	c.start()
	c.ctr("images", "import", stateDir+"/image.tar")
	alive := c.networked("alive")
	c.run("sh", "-c", "touch -d '1 hour ago' /var/lib/cni/results/*")
	c.await("the removal", func() bool { return !strings.Contains(c.records(), gone.id) })
	time.Sleep(netlab.Patient(12 * time.Second)) // one more look
	for name, s := range map[string]*sandbox{"that containerd knows": alive, "that the API server knows": left} {
		if !strings.Contains(c.records(), s.id) {
			t.Errorf("the attachment of the pod %s is gone:\n%s", name, c.records())
		}
	}
	if addrs := c.run("ls", "/var/lib/cni/networks/sluice"); strings.Contains(addrs, gone.ips[0]) || !strings.Contains(addrs, alive.ips[0]) {
		t.Errorf("addresses taken: %s; gone had %s, alive has %s", addrs, gone.ips[0], alive.ips[0])
	}
}

// networked is a pod with the agent's network, as soon as containerd has read it.
func (c *containerd) networked(name string) (s *sandbox) {
	c.t.Helper()
	var err error
	c.await("pod "+name, func() bool {
		s, err = c.tryRun(c.podConfig(name))
		return err == nil
	})
	return s
}

func (c *containerd) records() string {
	c.t.Helper()
	var names []string
	if err := c.Node.Do(func() error {
		found, err := filepath.Glob("/run/sluice/attachments/*.json")
		names = found
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(names, "\n")
}

// await waits until f is true.
func (c *containerd) await(what string, f func() bool) {
	c.t.Helper()
	for late := time.Now().Add(netlab.Patient(time.Minute)); !f(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(late) {
			c.t.Fatalf("%s does not come", what)
		}
	}
}
