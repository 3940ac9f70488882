// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/networkpolicy/kube"
)

const nodeName = "node"

// cluster is objects as the API server has them. Each change goes to an engine too, whose node has all pods.
type cluster struct {
	tb         testing.TB
	namespaces map[string]*corev1.Namespace
	pods       map[string]*corev1.Pod // by namespace/name
	policies   map[string]*networkingv1.NetworkPolicy
	made       int

	engine *networkpolicy.Engine
	tables *networkpolicy.Tables
}

func newCluster(tb testing.TB) *cluster {
	return &cluster{
		tb: tb, namespaces: map[string]*corev1.Namespace{}, pods: map[string]*corev1.Pod{}, policies: map[string]*networkingv1.NetworkPolicy{},
		engine: networkpolicy.New(networkpolicy.Config{Node: nodeName}), tables: networkpolicy.NewTables(),
	}
}

// commit brings the tables up to date.
func (c *cluster) commit() {
	b := c.engine.Commit()
	for _, change := range b.Changes {
		c.tables.Apply(change)
	}
	c.engine.Settled(b)
}

func (c *cluster) setNamespace(name string, labels map[string]string) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	c.namespaces[name] = ns
	c.engine.UpsertNamespace(kube.Namespace(ns))
}

func (c *cluster) deleteNamespace(name string) {
	for key, p := range c.pods {
		if p.Namespace == name {
			c.deletePod(key)
		}
	}
	for key, p := range c.policies {
		if p.Namespace == name {
			c.deletePolicy(key)
		}
	}
	delete(c.namespaces, name)
	c.engine.DeleteNamespace(name)
}

func (c *cluster) addPod(namespace, name string, labels map[string]string, ports []corev1.ContainerPort, addrs ...string) {
	c.made++
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, UID: types.UID(fmt.Sprint("uid-", c.made)), CreationTimestamp: metav1.Unix(int64(c.made), 0)},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Ports: ports}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addrs[0]},
	}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	c.pods[namespace+"/"+name] = p
	c.engine.UpsertPod(kube.Pod(p))
}

func (c *cluster) setPodLabels(key string, labels map[string]string) {
	p := c.pods[key].DeepCopy()
	p.Labels = labels
	c.pods[key] = p
	c.engine.UpsertPod(kube.Pod(p))
}

func (c *cluster) deletePod(key string) {
	c.engine.DeletePod(string(c.pods[key].UID))
	delete(c.pods, key)
}

func (c *cluster) setPolicy(np *networkingv1.NetworkPolicy) {
	np = defaulted(np)
	p, err := kube.NetworkPolicy(np)
	if err != nil {
		c.tb.Fatalf("%s/%s: %v", np.Namespace, np.Name, err)
	}
	c.policies[np.Namespace+"/"+np.Name] = np
	c.engine.UpsertPolicy(p)
}

func (c *cluster) deletePolicy(key string) {
	np := c.policies[key]
	delete(c.policies, key)
	c.engine.DeletePolicy(np.Namespace, np.Name)
}

// defaulted is an object as the API server stores it. Empty lists become nil, as they do in protobuf.
func defaulted(np *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	np = np.DeepCopy()
	if np.Namespace == "" {
		np.Namespace = metav1.NamespaceDefault
	}
	if len(np.Spec.PolicyTypes) == 0 {
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(np.Spec.Egress) > 0 {
			np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	if len(np.Spec.Ingress) == 0 {
		np.Spec.Ingress = nil
	}
	if len(np.Spec.Egress) == 0 {
		np.Spec.Egress = nil
	}
	for i := range np.Spec.Ingress {
		defaultPorts(np.Spec.Ingress[i].Ports)
	}
	for i := range np.Spec.Egress {
		defaultPorts(np.Spec.Egress[i].Ports)
	}
	return np
}

func defaultPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		if ports[i].Protocol == nil {
			ports[i].Protocol = ptr(corev1.ProtocolTCP)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// probe is one end of a connection: the pod that is asked, and the other end, whose pod is nil if it is none.
type probe struct {
	ingress  bool
	pod      *corev1.Pod
	peer     *corev1.Pod
	peerAddr string
	protocol corev1.Protocol
	port     int
}

func (p probe) String() string {
	direction, peer := "to", p.peerAddr
	if p.ingress {
		direction = "from"
	}
	if p.peer != nil {
		peer += " (" + p.peer.Namespace + "/" + p.peer.Name + ")"
	}
	return fmt.Sprintf("%s/%s %s %s, %s %d", p.pod.Namespace, p.pod.Name, direction, peer, p.protocol, p.port)
}

// destination is the pod whose ports are named.
func (p probe) destination() *corev1.Pod {
	if p.ingress {
		return p.pod
	}
	return p.peer
}

// names returns the names that the destination gives to the port.
func (p probe) names() []string {
	var names []string
	if d := p.destination(); d != nil {
		for _, port := range d.Spec.Containers[0].Ports {
			if int(port.ContainerPort) == p.port && port.Protocol == p.protocol {
				names = append(names, port.Name)
			}
		}
	}
	return names
}

// self is whether a pod talks to itself. Ours admits that always, as Kubernetes says of NetworkPolicy; the other engines judge it.
func (p probe) self() bool { return p.peer != nil && p.peer.UID == p.pod.UID }

var protocols = map[corev1.Protocol]networkpolicy.Protocol{
	corev1.ProtocolTCP: networkpolicy.TCP, corev1.ProtocolUDP: networkpolicy.UDP, corev1.ProtocolSCTP: networkpolicy.SCTP,
}

// verdict is ours. What Explain says has to be the same.
func (c *cluster) verdict(p probe) bool {
	dir := networkpolicy.Egress
	if p.ingress {
		dir = networkpolicy.Ingress
	}
	addr, proto := netip.MustParseAddr(p.peerAddr), protocols[p.protocol]
	v := c.tables.Lookup(string(p.pod.UID), dir, addr, proto, uint16(p.port))
	if d := c.engine.Explain(string(p.pod.UID), dir, addr, proto, uint16(p.port)); d.Verdict != v {
		c.tb.Fatalf("%v: %v, explained by %+v\n%s", p, v, d, c.dump())
	}
	return v == networkpolicy.Admitted
}

// probes returns all pairs of a pod and a peer in both directions, for each port.
func (c *cluster) probes(outside []string, ports []int, protocols []corev1.Protocol) []probe {
	var out []probe
	for _, key := range slices.Sorted(maps.Keys(c.pods)) {
		add := func(peer *corev1.Pod, addr string) {
			for _, port := range ports {
				for _, proto := range protocols {
					for _, ingress := range []bool{true, false} {
						out = append(out, probe{ingress, c.pods[key], peer, addr, proto, port})
					}
				}
			}
		}
		for _, other := range slices.Sorted(maps.Keys(c.pods)) {
			for _, ip := range c.pods[other].Status.PodIPs {
				add(c.pods[other], ip.IP)
			}
		}
		for _, addr := range outside {
			add(nil, addr)
		}
	}
	return out
}

// dump prints the objects of a cluster.
func (c *cluster) dump() string {
	var b strings.Builder
	for _, ns := range c.namespaces {
		fmt.Fprintf(&b, "namespace %s %v\n", ns.Name, ns.Labels)
	}
	for _, p := range c.pods {
		fmt.Fprintf(&b, "pod %s/%s %v %v %v\n", p.Namespace, p.Name, p.Labels, p.Status.PodIPs, p.Spec.Containers[0].Ports)
	}
	for _, p := range c.policies {
		text, err := yaml.Marshal(p.Spec)
		fmt.Fprintf(&b, "policy %s/%s:\n%s%v\n", p.Namespace, p.Name, text, err)
	}
	return b.String()
}
