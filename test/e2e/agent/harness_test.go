// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

func TestMain(m *testing.M) { e2etest.Main(m, "sluice-agent") }

const (
	binDir  = "/run/opt/cni/bin"
	confDir = "/etc/cni/net.d"
	network = confDir + "/10-sluice.conflist"
	self    = "node-a"
	healthz = "127.0.0.1:9879"
)

// patient is for steps of the agent on a machine that does other things too.
const patient = 60 * time.Second

// node is a node of a cluster that has an API server and no other machines.
type node struct {
	*e2etest.World
	api    *kubetest.Server
	client *kubernetes.Clientset
}

// sluice decodes what a command of the operator's tool prints. Other than SluiceJSON, an error does not end the test.
func (n *node) sluice(into any, args ...string) error {
	return n.Node.Do(func() error {
		out, err := netlab.Run(e2etest.Programs.Path("sluice"), append(args, "-o", "json")...)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(out), into)
	})
}

// newNode makes the node and the API server, whose address is the node's loopback. There is no Node object yet.
func newNode(t *testing.T, o ...netlab.Options) *node {
	t.Helper()
	w := e2etest.NewWorld(t, o...)
	n := &node{World: w, api: kubetest.Start(t, kubetest.Options{NS: w.Node.NS})}
	n.client = n.api.Client()
	n.configure("")
	return n
}

// configure writes the agent's configuration.
func (n *node) configure(more string) {
	n.T.Helper()
	text := fmt.Sprintf("paths: {binDir: %s, confDir: %s}\nclusterCIDRs: [10.244.0.0/16, \"fd24::/48\"]\nserviceCIDRs: [10.96.0.0/16, \"fd96::/108\"]\n%s\n", binDir, confDir, more)
	n.DoOnNode(func() error { return os.WriteFile("/etc/sluice/agent.yaml", []byte(text), 0o600) })
}

// addNode makes a Node object. The i-th has 192.0.2.i and 2001:db8:1::i.
func (n *node) addNode(name string, i int, cidrs ...string) {
	n.T.Helper()
	ctx := context.Background()
	made, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs, PodCIDR: first(cidrs)},
	}, metav1.CreateOptions{})
	if err != nil {
		n.T.Fatal(err)
	}
	made.ResourceVersion = "" // the agent may have annotated it already
	made.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("2001:db8:1::%x", i)},
		{Type: corev1.NodeHostName, Address: name},
	}
	if _, err := n.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		n.T.Fatal(err)
	}
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func (n *node) deleteNode(name string) {
	n.T.Helper()
	if err := n.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		n.T.Fatal(err)
	}
}

// start runs the agent.
func (n *node) start(args ...string) *e2etest.Process {
	n.T.Helper()
	return n.Run(n.command(append([]string{"--kubeconfig", n.api.Kubeconfig, "--node-name", self}, args...)...))
}

func (n *node) command(args ...string) *exec.Cmd {
	cmd := exec.Command(e2etest.Programs.Path("sluice-agent"), args...)
	cmd.Env = append(os.Environ(), "HOME=/root")
	return cmd
}

// remove runs "sluice-agent remove".
func (n *node) remove(args ...string) (out string, err error) {
	err = n.Node.Do(func() error {
		b, err := n.command(append([]string{"remove"}, args...)...).CombinedOutput()
		out = string(b)
		return err
	})
	return out, err
}

// ask returns status and body of a page of the agent.
func (n *node) ask(path string) (int, string, error) {
	client := n.Node.HTTPClient(20 * time.Second)
	r, err := client.Get("http://" + healthz + path)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// awaitReady waits until /readyz says so.
func (n *node) awaitReady() {
	n.T.Helper()
	e2etest.Eventually(n.T, patient, func() error {
		code, body, err := n.ask("/readyz")
		if err == nil && code != 200 {
			err = errors.New(body)
		}
		return err
	})
}

// awaitNot waits until /readyz names text.
func (n *node) awaitNot(text string) {
	n.T.Helper()
	e2etest.Eventually(n.T, patient, func() error {
		code, body, err := n.ask("/readyz")
		if err == nil && (code != 503 || !strings.Contains(body, text)) {
			err = fmt.Errorf("%d, %s, want %q", code, body, text)
		}
		return err
	})
}

// read returns a file of the node; empty if there is none.
func (n *node) read(path string) string {
	n.T.Helper()
	var b []byte
	n.DoOnNode(func() (err error) {
		b, err = os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	return string(b)
}

// awaitEvent waits for an Event about the node.
func (n *node) awaitEvent(reason, text string) {
	n.T.Helper()
	e2etest.Eventually(n.T, patient, func() error {
		list, err := n.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=" + reason})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == self && strings.Contains(e.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("no Event %s with %q among %d", reason, text, len(list.Items))
	})
}

// runtime reads the network as a runtime does.
func (n *node) runtime() *netlab.Runtime {
	n.T.Helper()
	rt, err := n.Node.CNI(netlab.CNIOptions{Path: []string{binDir}, Conflist: []byte(n.read(network)), Stderr: n.Stderr})
	if err != nil {
		n.T.Fatal(err)
	}
	return rt
}

// routes are the node's routes to pods of others.
func (n *node) routes() string {
	n.T.Helper()
	return e2etest.MustRun(n.T, n.Node, "ip -4 route show proto 115") + e2etest.MustRun(n.T, n.Node, "ip -6 route show proto 115")
}

// awaitRoute waits until there is a route to prefix, or none.
func (n *node) awaitRoute(prefix, gateway string, there bool) {
	n.T.Helper()
	e2etest.Eventually(n.T, patient, func() error {
		if got := n.routes(); strings.Contains(got, prefix+" via "+gateway+" ") != there {
			return fmt.Errorf("a route to %s: want %v, in\n%s", prefix, there, got)
		}
		return nil
	})
}

// exempt are the networks that are not masqueraded, by the node's configuration.
func (n *node) exempt() []netip.Prefix {
	n.T.Helper()
	var c struct{ NonMasqueradeCIDRs []netip.Prefix }
	if text := n.read("/etc/sluice/config.json"); text != "" {
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			n.T.Fatal(err)
		}
	}
	return c.NonMasqueradeCIDRs
}

// files are the names in a directory of the node, but hidden ones.
func (n *node) files(dir string) (names []string) {
	n.T.Helper()
	n.DoOnNode(func() error {
		found, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
		for _, f := range found {
			names = append(names, filepath.Base(f))
		}
		return err
	})
	return names
}

var errOld = errors.New("the network is that of the former podCIDR")
