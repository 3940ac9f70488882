// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

var errStays = errors.New("it is still there")

// Where the servers of pods listen.
const (
	httpPort = 8080
	udpPort  = 8081
)

// pod is one that serves its name.
type pod struct {
	name string
	node int
	ips  []netip.Addr // IPv4 first
}

// podSpec is a pod of a node that serves its name, by HTTP and to datagrams.
func podSpec(name, node string, labels map[string]string, ports ...corev1.ContainerPort) *corev1.Pod {
	second := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &second,
			Containers: []corev1.Container{{
				Name: "server", Image: kube.AgnhostImage, Ports: ports,
				Args: []string{"netexec", fmt.Sprint("--http-port=", httpPort), fmt.Sprint("--udp-port=", udpPort)},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/hostname", Port: intstr.FromInt32(httpPort)}},
					PeriodSeconds: 1,
				},
			}},
		},
	}
}

// create creates pods and waits until they are ready.
func (s *suite) create(specs ...*corev1.Pod) []pod {
	s.t.Helper()
	s.createOnly(specs...)
	var pods []pod
	for _, spec := range specs {
		pods = append(pods, s.ready(spec.Name))
	}
	return pods
}

// createOnly does not wait.
func (s *suite) createOnly(specs ...*corev1.Pod) {
	s.t.Helper()
	for _, spec := range specs {
		_, err := s.client.CoreV1().Pods(s.ns).Create(s.t.Context(), spec, metav1.CreateOptions{})
		s.must(err)
	}
}

// pod creates one on a node.
func (s *suite) pod(name string, node int, ports ...corev1.ContainerPort) pod {
	s.t.Helper()
	return s.create(podSpec(name, s.Node[node].Name, map[string]string{"app": name}, ports...))[0]
}

// ready waits for a pod.
func (s *suite) ready(name string) pod {
	s.t.Helper()
	return s.again(name, 0)
}

// again waits for a pod whose containers have started that many times again.
func (s *suite) again(name string, restarts int32) pod {
	s.t.Helper()
	p, err := s.readyPod(s.t.Context(), name, restarts)
	s.must(err)
	return p
}

// readyWithin is how long a pod may take. After an outage of the API server kubelet asks for its pods again after up to a minute: the pause of
// client-go's reflector grows to 30 s, and as much again by chance.
const readyWithin = 3 * time.Minute

func (s *suite) readyPod(ctx context.Context, name string, restarts int32) (p pod, err error) {
	err = kube.Poll(ctx, readyWithin, name+" is ready", func(ctx context.Context) error {
		got, err := s.client.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(got.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
			return fmt.Errorf("it is %s", got.Status.Phase)
		}
		if had := got.Status.ContainerStatuses[0].RestartCount; had < restarts {
			return fmt.Errorf("it has started %d times again", had)
		}
		p = pod{name: name}
		for _, ip := range got.Status.PodIPs {
			p.ips = append(p.ips, netip.MustParseAddr(ip.IP))
		}
		p.node = slices.IndexFunc(s.Node, func(m *machine.Machine) bool { return m.Name == got.Spec.NodeName })
		return nil
	})
	if err == nil && (len(p.ips) != 2 || !p.ips[0].Is4() || !p.ips[1].Is6()) {
		err = fmt.Errorf("%s has the addresses %v, want one of each family", name, p.ips)
	}
	return p, err
}

// delete deletes pods and waits until they are gone.
func (s *suite) delete(pods ...pod) {
	s.t.Helper()
	var names []string
	for _, p := range pods {
		names = append(names, p.name)
	}
	s.must(s.deletePods(s.t.Context(), names...))
}

func (s *suite) deletePods(ctx context.Context, names ...string) error {
	pods := s.client.CoreV1().Pods(s.ns)
	for _, name := range names {
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := kube.Poll(ctx, time.Minute, name+" is gone", func(ctx context.Context) error {
			_, err := pods.Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			return errStays
		}); err != nil {
			return err
		}
	}
	return nil
}

// service makes a Service of both families in front of the pods with a label.
func (s *suite) service(name, app string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s.t.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": app}, IPFamilyPolicy: &both,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(httpPort)},
				{Name: "udp", Port: 81, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(udpPort)},
			},
		},
	}
	if change != nil {
		change(&svc.Spec)
	}
	got, err := s.client.CoreV1().Services(s.ns).Create(s.t.Context(), svc, metav1.CreateOptions{})
	s.must(err)
	return got
}

// client of HTTP whose connections start in a machine.
func client(m *machine.Machine) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: kube.Dialer(m), DisableKeepAlives: true}}
}

func get(c *http.Client, url string) (string, error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, r.Status, body)
	}
	return string(body), err
}

// from asks for something, as a pod or a machine does, and returns the answer: the name of the pod that is reached, or what it says to
// another request of netexec.
type from func(protocol, request string, addr netip.Addr, port int) (string, error)

// asPod asks from inside a pod: its netexec passes the request on.
func (s *suite) asPod(p pod) from {
	direct := client(s.Control)
	return func(protocol, request string, addr netip.Addr, port int) (string, error) {
		q := url.Values{"protocol": {protocol}, "request": {request}, "host": {addr.String()}, "port": {fmt.Sprint(port)}, "tries": {"1"}}
		said, err := get(direct, "http://"+net.JoinHostPort(p.ips[0].String(), fmt.Sprint(httpPort))+"/dial?"+q.Encode())
		if err != nil {
			return "", err
		}
		var answer struct{ Responses, Errors []string }
		if err := json.Unmarshal([]byte(said), &answer); err != nil {
			return "", fmt.Errorf("%q: %w", said, err)
		}
		if len(answer.Responses) != 1 || len(answer.Errors) > 0 {
			return "", fmt.Errorf("no answer: %v", answer.Errors)
		}
		return strings.TrimSpace(answer.Responses[0]), nil
	}
}

// asMachine asks from a process of a machine, which is in its cgroups: the node's own sockets are translated there.
func (s *suite) asMachine(m *machine.Machine) from {
	return func(protocol, request string, addr netip.Addr, port int) (string, error) {
		where := net.JoinHostPort(addr.String(), fmt.Sprint(port))
		if protocol == "http" {
			return m.Run(s.t.Context(), "curl", "-gsS", "-m", "5", "http://"+where+"/"+request)
		}
		out, err := m.RunWith(s.t.Context(), request, "nc", "-u", "-w", "1", addr.String(), fmt.Sprint(port))
		if err == nil && out == "" {
			err = errors.New("no answer")
		}
		return strings.TrimSpace(out), err
	}
}

var protocols = map[string]int{"http": httpPort, "udp": udpPort}

// reaches checks that a server is reached by both protocols at an address. who asks is for the message.
func (s *suite) reaches(who string, ask from, addr netip.Addr, ports map[string]int, want ...string) {
	s.t.Helper()
	for protocol, port := range ports {
		got, err := ask(protocol, "hostname", addr, port)
		if err != nil {
			s.t.Errorf("%s does not reach %s port %d by %s: %v", who, addr, port, protocol, err)
		} else if !slices.Contains(want, got) {
			s.t.Errorf("%s reaches %q at %s port %d by %s, want %v", who, got, addr, port, protocol, want)
		}
	}
}
