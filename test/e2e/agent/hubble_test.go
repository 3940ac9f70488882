// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const hubbleSocket = "unix:///run/sluice/hubble.sock"

var withHubble = flag.Bool("hubble", false, "build the published hubble and hubble-relay, minutes the first time, and run their tests")

// observed is a node whose agent serves Hubble's API, with one pod that has a name in the API server, a hostPort and a server.
type observed struct {
	*node
	hubble string // the published client
	agent  *e2etest.Process
	pod    *e2etest.Pod
}

func newObserved(t *testing.T, programs []string, more string) *observed {
	t.Helper()
	require.Asked(t, *withHubble, "make hubble")
	bin, err := kubebin.Build(t.Context(), programs...)
	if err != nil {
		t.Fatal(err)
	}
	o := &observed{node: newNode(t), hubble: filepath.Join(bin, kubebin.Hubble)}
	o.configure("observe: {enabled: true" + more + "}")
	o.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	o.agent = o.start()
	o.awaitReady()
	o.pod = o.AddPod(o.runtime(), "p1", e2etest.TCP(8080, 80))
	e2etest.Serve(t, o.pod, "cart", ":80")
	o.addPod("shop", "cart", o.pod)
	return o
}

// addPod makes the Pod object of a pod, as a Deployment's, with the addresses that it has.
func (o *observed) addPod(namespace, app string, p *e2etest.Pod) {
	o.T.Helper()
	ctx, yes := context.Background(), true
	if _, err := o.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		o.T.Fatal(err)
	}
	made, err := o.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: app + "-5f8-x2", Labels: map[string]string{"app": app, "pod-template-hash": "5f8"}, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-5f8", UID: "1", Controller: &yes}}},
		Spec: corev1.PodSpec{NodeName: self, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		o.T.Fatal(err)
	}
	made.Status.Phase = corev1.PodRunning
	made.Status.PodIP, made.Status.PodIPs = p.IP4.String(), []corev1.PodIP{{IP: p.IP4.String()}, {IP: p.IP6.String()}}
	if _, err := o.client.CoreV1().Pods(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		o.T.Fatal(err)
	}
}

// ask runs the client on the node.
func (o *observed) ask(server string, args ...string) (out string, err error) {
	err = o.Node.Do(func() error {
		cmd := exec.Command(o.hubble, append([]string{"--server", server}, args...)...)
		cmd.Env = []string{"HOME=/run", "PATH=/usr/bin:/bin"}
		b, err := cmd.CombinedOutput()
		out = string(b)
		return err
	})
	return out, err
}

// follow runs "hubble observe --follow" until the test ends.
func (o *observed) follow(server string, args ...string) *e2etest.Process {
	o.T.Helper()
	cmd := exec.Command(o.hubble, append([]string{"--server", server, "observe", "--follow", "-o", "jsonpb"}, args...)...)
	cmd.Env = []string{"HOME=/run", "PATH=/usr/bin:/bin"}
	return o.Run(cmd)
}

// hubbleLine is what the test reads of a line of "hubble observe -o jsonpb".
type hubbleLine struct {
	Flow struct {
		Verdict string
		IP      struct{ Source, Destination string }
		L4      struct {
			TCP struct{ SourcePort, DestinationPort int }
		}
		Source         endpointLine
		Destination    endpointLine
		NodeName       string `json:"node_name"`
		DropReasonDesc string `json:"drop_reason_desc"`
		Summary        string
	}
}

type endpointLine struct {
	Namespace string
	PodName   string `json:"pod_name"`
	Labels    []string
	Workloads []struct{ Name, Kind string }
}

func flowsIn(text string) (out []hubbleLine) {
	for line := range strings.Lines(text) {
		var l hubbleLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Flow.Verdict != "" {
			out = append(out, l)
		}
	}
	return out
}

// talk opens a connection to the hostPort.
func (o *observed) talk() *e2etest.Talk {
	o.T.Helper()
	c, err := e2etest.Dial(o.Client(), "tcp4", "", "192.0.2.1:8080")
	if err != nil {
		o.T.Fatal(err)
	}
	o.T.Cleanup(func() { _ = c.Close() })
	return c
}

// isCart says what is wrong with the flow of a client's connection to the pod.
func isCart(l hubbleLine) error {
	d := l.Flow.Destination
	if l.Flow.Verdict != "FORWARDED" || d.Namespace != "shop" || d.PodName != "cart-5f8-x2" || !slices.Contains(d.Labels, "k8s:app=cart") ||
		len(d.Workloads) != 1 || d.Workloads[0].Kind != "Deployment" || d.Workloads[0].Name != "cart" || !slices.Contains(l.Flow.Source.Labels, "reserved:world") || l.Flow.NodeName != self {
		return fmt.Errorf("%+v", l)
	}
	return nil
}

// The published client of Hubble works with the agent as it is, and the agent does nothing while no client asks.
func TestPrivilegedHubble(t *testing.T) {
	o := newObserved(t, []string{kubebin.Hubble}, "")
	must := func(args ...string) string {
		t.Helper()
		out, err := o.ask(hubbleSocket, args...)
		if err != nil {
			t.Errorf("hubble %v: %v: %s", args, err, out)
		}
		t.Logf("hubble %v\n%s", args, out)
		return out
	}
	if out := must("status"); !strings.Contains(out, "Ok") {
		t.Error("status")
	}
	before := o.talk()
	defer before.Close()

	flows := flowsIn(must("observe", "--last", "20", "-o", "jsonpb"))
	if len(flows) == 0 {
		t.Fatal("no flow")
	}
	if err := isCart(flows[len(flows)-1]); err != nil {
		t.Error(err)
	}
	for filter, want := range map[string]bool{
		"--pod shop/cart": true, "--pod shop/web": false, "--to-port 80": true, "--from-port 80": false, "--verdict FORWARDED": true, "--verdict DROPPED": false, "--protocol tcp": true,
		"--to-label app=cart": true, "--to-label app=web": false, "--namespace shop": true, "--to-workload cart": true, "--ip 192.0.2.2": true, "--not --ip 192.0.2.2": false,
		"--node-name node-*": true, "--traffic-direction ingress": true, "--traffic-direction egress": false,
	} {
		if got := must(append([]string{"observe", "-o", "compact"}, strings.Fields(filter)...)...); strings.Contains(got, "shop/cart-5f8-x2:80") != want {
			t.Errorf("%s: want %v", filter, want)
		}
	}
	if out, err := o.ask(hubbleSocket, "observe", "--http-status", "200"); err == nil || !strings.Contains(out, "http_status_code: not supported") {
		t.Errorf("a filter of layer 7: %v, %s", err, out)
	}
	if out := must("list", "nodes"); !strings.Contains(out, self) || !strings.Contains(out, "Connected") {
		t.Error("nodes")
	}
	if out := must("list", "namespaces"); !strings.Contains(out, "shop") {
		t.Error("namespaces")
	}

	if n := o.children(); n != 0 {
		t.Errorf("%d processes of the agent while no client asks", n)
	}
	first := o.follow(hubbleSocket)
	o.followNew(first)
	second := o.follow(hubbleSocket, "--verdict", "DROPPED")
	o.followDrops(second)
	t.Logf("agent with two clients: RSS %d kB, at most %d kB", memory(t, o.agent.PID(), "VmRSS"), memory(t, o.agent.PID(), "VmHWM"))
	if peak := memory(t, o.agent.PID(), "VmHWM"); peak > maxRSS {
		t.Errorf("peak %d kB, want at most %d", peak, maxRSS)
	}
	if n := o.children(); n != 1 {
		t.Errorf("%d processes of the agent for two clients, want one", n)
	}
	first.Signal(unix.SIGTERM)
	second.Signal(unix.SIGTERM)
	e2etest.Eventually(t, patient, func() error {
		if n := o.children(); n != 0 {
			return fmt.Errorf("%d processes of the agent after the last client", n)
		}
		return nil
	})
}

// followNew waits for a connection that begins now.
func (o *observed) followNew(p *e2etest.Process) {
	o.T.Helper()
	var c *e2etest.Talk
	e2etest.Eventually(o.T, patient, func() error {
		if c == nil && o.children() > 0 { // the observer runs
			time.Sleep(2 * time.Second) // its first look
			c = o.talk()
		}
		for _, l := range flowsIn(p.Out.String()) {
			if strings.HasPrefix(l.Flow.Summary, "new") {
				return isCart(l)
			}
		}
		return errors.New("no new connection")
	})
}

// followDrops waits for a packet that the denylist drops.
func (o *observed) followDrops(p *e2etest.Process) {
	o.T.Helper()
	e2etest.MustRun(o.T, o.Node, e2etest.Programs.Path("sluice")+" deny add 192.0.2.2/32")
	e2etest.Eventually(o.T, patient, func() error {
		if c, err := e2etest.DialWithin(time.Second, o.Client(), "tcp4", "", "192.0.2.1:8080"); err == nil {
			_ = c.Close()
		}
		for _, l := range flowsIn(p.Out.String()) {
			if l.Flow.Verdict == "DROPPED" && l.Flow.DropReasonDesc == "POLICY_DENY" && strings.HasPrefix(l.Flow.Summary, "denied") {
				return nil
			}
		}
		return errors.New("no dropped packet")
	})
}

// children counts the processes that the agent runs.
func (o *observed) children() (n int) {
	o.T.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", o.agent.PID()))
	if err != nil {
		o.T.Fatal(err)
	}
	for _, file := range tasks {
		if b, err := os.ReadFile(file); err == nil {
			n += len(strings.Fields(string(b)))
		}
	}
	return n
}

// relay is where hubble-relay answers on the node, without TLS.
const relay = "127.0.0.1:4245"

// newRelayed is newObserved with a relay that finds the node by the agent's Peer service, and asks it by mutual TLS.
func newRelayed(t *testing.T, programs ...string) (*observed, *kubetest.PKI) {
	t.Helper()
	require.Asked(t, *withHubble, "make hubble")
	pki, err := kubetest.NewPKI(t.TempDir(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pki.Mutual("hubble", "*.default.hubble-grpc.cilium.io"), pki.Mutual("relay", "relay")); err != nil {
		t.Fatal(err)
	}
	o := newObserved(t, append(programs, kubebin.HubbleRelay), fmt.Sprintf(`, address: "192.0.2.1:4244", tls: {cert: %s, key: %s, clientCA: %s}`,
		pki.File("hubble.crt"), pki.File("hubble.key"), pki.File("ca.crt")))
	o.Start(filepath.Join(filepath.Dir(o.hubble), kubebin.HubbleRelay), "serve", "--peer-service", "192.0.2.1:4244", "--listen-address", relay, "--disable-server-tls",
		"--tls-hubble-client-cert-file", pki.File("relay.crt"), "--tls-hubble-client-key-file", pki.File("relay.key"), "--tls-hubble-server-ca-files", pki.File("ca.crt"))
	return o, pki
}

// The published client works with the published relay. A node answers no client without a certificate.
func TestPrivilegedHubbleRelay(t *testing.T) {
	o, pki := newRelayed(t, kubebin.Hubble)
	talk := o.talk()
	defer talk.Close()
	e2etest.Eventually(t, patient, func() error {
		out, err := o.ask(relay, "list", "nodes")
		if err == nil && (!strings.Contains(out, self) || !strings.Contains(out, "Connected")) {
			err = errors.New(out)
		}
		return err
	})
	out, err := o.ask(relay, "observe", "--last", "5", "-o", "jsonpb", "--pod", "shop/cart")
	flows := flowsIn(out)
	if err != nil || len(flows) == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	if err := isCart(flows[0]); err != nil {
		t.Error(err)
	}
	direct := []string{"--tls", "--tls-ca-cert-files", pki.File("ca.crt"), "--tls-server-name", "node-a.default.hubble-grpc.cilium.io", "--timeout", "5s", "status"}
	certificate := []string{"--tls-client-cert-file", pki.File("relay.crt"), "--tls-client-key-file", pki.File("relay.key")}
	if out, err := o.ask("tls://192.0.2.1:4244", append(certificate, direct...)...); err != nil {
		t.Errorf("with a certificate: %v: %s", err, out)
	}
	if out, err := o.ask("tls://192.0.2.1:4244", direct...); err == nil {
		t.Errorf("without a certificate: %s", out)
	}
}
