// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/kube"
)

func policed(t *testing.T) *suite {
	t.Helper()
	s := open(t)
	require.Asked(t, s.NetworkPolicy, "go run ./test/cluster test -agent host-gw -network-policy")
	return s
}

// policy is about the pods of an app, or all if that is empty.
func (s *suite) policy(name, app string, spec networkingv1.NetworkPolicySpec) {
	s.t.Helper()
	if app != "" {
		spec.PodSelector.MatchLabels = map[string]string{"app": app}
	}
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	_, err := s.client.NetworkingV1().NetworkPolicies(s.ns).Create(s.t.Context(), p, metav1.CreateOptions{})
	s.must(err)
}

func app(name string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}}
}

var onlyHTTP = []networkingv1.NetworkPolicyPort{{Port: &intstr.IntOrString{IntVal: httpPort}}}

// becomes waits until a pod reaches another one, or does not.
func (s *suite) becomes(p pod, protocol string, addr netip.Addr, port int, open bool) {
	s.t.Helper()
	s.until(fmt.Sprintf("%s to %s port %d by %s: open %v", p.name, addr, port, protocol, open), func(context.Context) error {
		got, err := s.asPod(p)(protocol, "hostname", addr, port)
		if (err == nil) != open {
			return fmt.Errorf("answer %q: %w", got, err)
		}
		return nil
	})
}

// Policies of both directions, by labels, ports and blocks, to pods and through Services whose endpoints are on both nodes. The node reaches all.
func TestPrivilegedNetworkPolicy(t *testing.T) {
	s := policed(t)
	node := func(i int) string { return s.Node[i].Name }
	label := func(app string) map[string]string { return map[string]string{"app": app} }
	pods := s.create(podSpec("web0", node(0), label("web")), podSpec("web1", node(1), label("web")),
		podSpec("front", node(0), label("front")), podSpec("other", node(0), label("other")), podSpec("far", node(1), label("front")))
	web, front, other, far := pods[:2], pods[2], pods[3], pods[4]
	svc := s.service("web", "web", nil)
	vips := []netip.Addr{netip.MustParseAddr(svc.Spec.ClusterIPs[0]), netip.MustParseAddr(svc.Spec.ClusterIPs[1])}
	for _, p := range []pod{front, other, far} {
		s.served(s.asPod(p), vips[0], 80, []string{"web0", "web1"})
	}

	s.policy("web", "web", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{app("front")}, Ports: onlyHTTP},
	}})
	matrix := func(from []pod, want func(from, to pod, protocol string) bool) {
		t.Helper()
		for _, from := range from {
			for _, to := range web {
				for protocol, port := range protocols {
					for _, addr := range to.ips {
						s.becomes(from, protocol, addr, port, want(from, to, protocol))
					}
				}
			}
		}
	}
	fronts := func(from, _ pod, protocol string) bool { return from.name != "other" && protocol == "http" }
	matrix([]pod{front, other, far}, fronts)
	for _, vip := range vips {
		s.served(s.asPod(front), vip, 80, []string{"web0", "web1"})
		s.served(s.asPod(far), vip, 80, []string{"web0", "web1"})
		for range 4 {
			if got, err := s.asPod(other)("http", "hostname", vip, 80); err == nil {
				t.Errorf("other reaches %s through the Service", got)
			}
		}
	}
	for i := range web { // as kubelet does
		s.reaches(node(i), s.asMachine(s.Node[i]), web[i].ips[0], protocols, web[i].name)
	}

	// Egress is about the endpoint, not the Service's address. The policy is about pods of the other node too.
	s.policy("front", "front", networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{app("web")}, Ports: onlyHTTP}},
	})
	s.becomes(front, "http", other.ips[0], httpPort, false)
	s.becomes(far, "http", other.ips[1], httpPort, false)
	matrix([]pod{front}, fronts)
	for _, vip := range vips {
		s.served(s.asPod(front), vip, 80, []string{"web0", "web1"})
		s.served(s.asPod(far), vip, 80, []string{"web0", "web1"})
	}
	wrong := s.service("other", "other", nil)
	for _, ip := range wrong.Spec.ClusterIPs {
		s.served(s.asMachine(s.Node[0]), netip.MustParseAddr(ip), 80, []string{"other"})
		for _, p := range []pod{front, far} {
			if got, err := s.asPod(p)("http", "hostname", netip.MustParseAddr(ip), 80); err == nil {
				t.Errorf("%s reaches %s through a Service", p.name, got)
			}
		}
	}
	stop := s.serveOutside(9100)
	defer stop()
	for _, addr := range kube.OutsideAddrs() {
		s.becomes(front, "http", addr, 9100, false)
		s.becomes(other, "http", addr, 9100, true)
	}
	s.policy("outside", "front", networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{
			{IPBlock: &networkingv1.IPBlock{CIDR: kube.OutsideAddrs()[0].String() + "/32"}},
		}}},
	})
	s.becomes(front, "http", kube.OutsideAddrs()[0], 9100, true)
	s.becomes(front, "http", kube.OutsideAddrs()[1], 9100, false)

	// A peer's labels change, and connections that are open follow.
	dial, err := s.PodDialer(t.Context(), 0, front.ips[0])
	s.must(err)
	talk, err := dial(t.Context(), "tcp", net.JoinHostPort(web[1].ips[0].String(), fmt.Sprint(httpPort)))
	s.must(err)
	defer talk.Close()
	ask := func() error {
		_ = talk.SetDeadline(time.Now().Add(netlab.Patient(2 * time.Second)))
		if _, err := talk.Write([]byte("GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n")); err != nil {
			return err
		}
		_, err := talk.Read(make([]byte, 4096))
		return err
	}
	for range 5 {
		s.must(ask())
	}
	patch := `{"metadata":{"labels":{"app":"lost"}}}`
	_, err = s.client.CoreV1().Pods(s.ns).Patch(t.Context(), "front", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
	s.becomes(front, "http", web[1].ips[0], httpPort, false)
	if err := ask(); err == nil {
		t.Error("an open connection goes on after its peer has lost the right to it")
	}
	s.becomes(front, "http", other.ips[0], httpPort, true) // no policy of egress selects it any more
}

// A pod that starts under a flood toward its address, and sends at once, has no unenforced moment, and what is allowed passes as soon as it is ready.
func TestPrivilegedNetworkPolicyAtStart(t *testing.T) {
	s := policed(t)
	s.policy("closed", "closed", networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{app("friend")}}},
	})
	friend := s.pod("friend", 1)
	sink := s.pod("sink", 1)
	stop := s.serveOutside(9100)
	defer stop()
	var answers, asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), s.Node[0].Name, metav1.GetOptions{})
	s.must(err)
	network := netip.MustParsePrefix(node.Spec.PodCIDRs[0])
	var addrs atomic.Value // those that the node gives next, as host-local does
	next := func(after netip.Addr) {
		var list []string
		for range 3 {
			if after = after.Next(); !network.Contains(after) {
				after = network.Addr().Next().Next()
			}
			list = append(list, after.String())
		}
		addrs.Store(strings.Join(list, ","))
	}
	next(s.pod("first", 0).ips[0])
	go func() {
		c := &http.Client{Timeout: 50 * time.Millisecond, Transport: &http.Transport{DialContext: kube.Dialer(s.Outside), DisableKeepAlives: true}}
		for ctx.Err() == nil {
			for a := range strings.SplitSeq(addrs.Load().(string), ",") {
				asked.Add(1)
				got, err := get(c, "http://"+net.JoinHostPort(a, fmt.Sprint(httpPort))+"/hostname")
				if err == nil && strings.HasPrefix(got, "closed") {
					answers.Add(1)
				}
			}
		}
	}()
	for i := range 20 {
		name := fmt.Sprint("closed", i)
		spec := podSpec(name, s.Node[0].Name, map[string]string{"app": "closed"})
		spec.Spec.RestartPolicy = corev1.RestartPolicyNever
		spec.Spec.Containers = append(spec.Spec.Containers, corev1.Container{
			Name: "sends", Image: kube.AgnhostImage,
			Args: []string{"connect", net.JoinHostPort(sink.ips[0].String(), fmt.Sprint(httpPort)), "--timeout=300ms"},
		})
		s.createOnly(spec)
		s.until(name+" has tried to send", func(ctx context.Context) error {
			p, err := s.client.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range p.Status.ContainerStatuses {
				if c.Name == "sends" && c.State.Terminated != nil {
					if c.State.Terminated.ExitCode == 0 {
						t.Errorf("%s reaches what no policy admits", name)
					}
					next(netip.MustParseAddr(p.Status.PodIP))
					return nil
				}
			}
			return errors.New("it has not ended")
		})
		s.must(s.client.CoreV1().Pods(s.ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	spec := podSpec("late", s.Node[0].Name, map[string]string{"app": "closed"})
	open := s.create(spec)[0]
	s.becomes(friend, "http", open.ips[0], httpPort, true)
	cancel()
	if answers.Load() > 0 || asked.Load() < 1000 {
		t.Errorf("%d of %d requests were answered by closed pods", answers.Load(), asked.Load())
	}
}
