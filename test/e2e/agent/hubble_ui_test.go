// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// page asks relay as Hubble UI does, and keeps of the flows what that shows. Its backend is in no registry, so these are the requests and the
// rules of its source (cilium/hubble-ui, commit cf05d865 of 2026-04-22).
type page struct {
	client observer.ObserverClient

	mu    sync.Mutex
	cards map[string]string // by number: what is written on it
	links map[string]flow.Verdict
	keys  map[string]bool // of the rows of the table
	twice []string        // rows that the table shows once, and came more often
	err   error
}

func (o *observed) newPage() *page {
	o.T.Helper()
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return o.Node.DialContext(ctx, "tcp", addr) }
	c, err := grpc.NewClient("passthrough:///"+relay, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	if err != nil {
		o.T.Fatal(err)
	}
	o.T.Cleanup(func() { _ = c.Close() })
	return &page{client: observer.NewObserverClient(c), cards: map[string]string{}, links: map[string]flow.Verdict{}, keys: map[string]bool{}}
}

// pageRequest is what the page asks for when a namespace is chosen, with more on what it looks at. Its switches have their defaults: it hides
// nodes, the cluster's DNS and Prometheus.
func pageRequest(namespace string, more func(*flow.FlowFilter)) *observer.GetFlowsRequest {
	from := &flow.FlowFilter{SourcePod: []string{namespace + "/"}, Reply: []bool{false}}
	to := &flow.FlowFilter{DestinationPod: []string{namespace + "/"}, Reply: []bool{false}}
	if more != nil {
		more(from)
		more(to)
	}
	hidden := []string{"reserved:unknown", "reserved:host", "reserved:remote-node", "k8s:app=prometheus"}
	const dns, names = "k8s:k8s-app=kube-dns", "*.cluster.local*"
	return &observer.GetFlowsRequest{Number: 10000, Follow: true, Whitelist: []*flow.FlowFilter{from, to}, Blacklist: []*flow.FlowFilter{
		{SourceLabel: append([]string{dns}, hidden...)}, {DestinationLabel: hidden}, {DestinationLabel: []string{dns}, DestinationPort: []string{"53"}},
		{SourceFqdn: []string{names}}, {DestinationFqdn: []string{names}},
	}}
}

// look follows until the test ends.
func (p *page) look(t *testing.T, r *observer.GetFlowsRequest) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := p.client.GetFlows(ctx, r, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() {
		for {
			out, err := stream.Recv()
			p.mu.Lock()
			if err != nil {
				p.err = err
			} else if f := out.GetFlow(); f != nil {
				p.show(f)
			}
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
}

// show keeps a flow that has both ends and a layer 4. The page hides what goes to a Service that it takes for the world.
func (p *page) show(f *flow.Flow) {
	if f.GetL4() == nil || f.GetSource() == nil || f.GetDestination() == nil || f.GetDestinationService() != nil && isWorld(f.GetDestination()) {
		return
	}
	from, to := p.card(f.GetSource(), "sender"), p.card(f.GetDestination(), "receiver")
	port := fmt.Sprint(f.GetL4().GetTCP().GetDestinationPort())
	if udp := f.GetL4().GetUDP(); udp != nil {
		port = fmt.Sprint(udp.GetDestinationPort(), "/udp")
	}
	link := fmt.Sprintf("%s > %s:%s", p.cards[from], p.cards[to], port)
	if s := f.GetDestinationService(); s != nil {
		link += " for " + s.GetNamespace() + "/" + s.GetName()
	}
	p.links[link] = f.GetVerdict()
	key := fmt.Sprint(f.GetTime().AsTime().UnixNano(), f.GetNodeName())
	if p.keys[key] {
		p.twice = append(p.twice, f.String())
	}
	p.keys[key] = true
}

func isWorld(e *flow.Endpoint) bool {
	for _, l := range e.GetLabels() {
		if l == "reserved:world" {
			return true
		}
	}
	return false
}

// card is the number of the card of an end. Where the end has no identity and is not the world, backend and browser make different ones.
func (p *page) card(e *flow.Endpoint, side string) string {
	id := strconv.FormatUint(uint64(e.GetIdentity()), 10)
	name := "no identity"
	switch {
	case isWorld(e):
		id, name = "world-"+side, "world"
	case e.GetIdentity() != 0:
		name = "no name"
		for _, l := range e.GetLabels() {
			if app, ok := strings.CutPrefix(l, "k8s:app="); ok {
				name = e.GetNamespace() + "/" + app
			}
			if service, ok := strings.CutPrefix(l, "k8s:kubernetes.io/service-name="); ok {
				name = "Service " + e.GetNamespace() + "/" + service
			}
		}
	}
	p.cards[id] = name
	return id
}

// await waits for a link of the service map.
func (p *page) await(t *testing.T, link string, want flow.Verdict) {
	t.Helper()
	e2etest.Eventually(t, patient, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if got, ok := p.links[link]; !ok || got != want {
			return errors.Join(fmt.Errorf("%s %v: among %v", link, want, p.links), p.err)
		}
		return nil
	})
}

// addDenied adds a pod that may open no connection.
func (o *observed) addDenied(name string) *e2etest.Pod {
	o.T.Helper()
	const firewall = `"type": "firewall"`
	conf := o.read(network)
	if !strings.Contains(conf, firewall) {
		o.T.Fatal(conf)
	}
	rt, err := o.Node.CNI(netlab.CNIOptions{Path: []string{binDir}, Stderr: o.Stderr,
		Conflist: []byte(strings.Replace(conf, firewall, firewall+`, "rules": {"egressDefault": "deny"}`, 1))})
	if err != nil {
		o.T.Fatal(err)
	}
	return o.AddPod(rt, name)
}

// connect opens a connection that stays open until the test ends.
func (o *observed) connect(from e2etest.Place, addr string) {
	o.T.Helper()
	c, err := e2etest.Dial(from, "tcp4", "", addr)
	if err != nil {
		o.T.Fatal(err)
	}
	o.T.Cleanup(func() { _ = c.Close() })
}

// newShop is newRelayed with a Service of the pod, a pod that talks with all, and one that may open no connection.
func newShop(t *testing.T) (o *observed, web, worker *e2etest.Pod, vip netip.Addr) {
	t.Helper()
	o, _ = newRelayed(t)
	ipv4 := e2etest.Families()[0]
	vip = e2etest.VirtualIP(ipv4)
	if _, err := o.client.CoreV1().Services("shop").Create(context.Background(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cart"},
		Spec: corev1.ServiceSpec{ClusterIP: vip.String(), Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e2etest.TranslateVIP(t, o.Node, ipv4, vip, o.pod.IP4, 80)
	web, worker = o.AddPod(o.runtime(), "p2"), o.addDenied("p3")
	o.addPod("front", "web", web)
	o.addPod("back", "worker", worker)
	e2etest.Serve(t, o.Client(), "outside", ":443")
	o.connect(o.Client(), "192.0.2.1:8080")
	o.connect(web, e2etest.At(vip, 80))
	o.connect(web, e2etest.At(o.pod.IP4, 80))
	o.connect(web, "192.0.2.2:443")
	return o, web, worker, vip
}

// Hubble UI works with the agent through relay: its status, its service map with names, a click on a card, dropped packets, many pages.
func TestPrivilegedHubbleUI(t *testing.T) {
	o, web, worker, vip := newShop(t)
	ctx := context.Background()
	p := o.newPage()
	e2etest.Eventually(t, patient, func() error { // relay has found the node
		st, err := p.client.ServerStatus(ctx, &observer.ServerStatusRequest{})
		if err == nil && (st.GetNumConnectedNodes().GetValue() != 1 || st.GetUptimeNs() == 0 || st.GetVersion() == "") {
			err = fmt.Errorf("%v", st)
		}
		return err
	})
	if nodes, err := p.client.GetNodes(ctx, &observer.GetNodesRequest{}); err != nil || len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetName() != self {
		t.Errorf("%v, %v", nodes, err)
	}
	p.look(t, pageRequest("shop", nil))
	p.await(t, "world > shop/cart:80", flow.Verdict_FORWARDED)
	p.await(t, "front/web > shop/cart:80", flow.Verdict_FORWARDED)
	p.await(t, "front/web > shop/cart:80 for shop/cart", flow.Verdict_FORWARDED)
	udp, err := e2etest.Dial(web, "udp4", "", e2etest.At(vip, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	p.await(t, "front/web > shop/cart:80/udp for shop/cart", flow.Verdict_FORWARDED)
	p.await(t, "front/web > shop/cart:80/udp", flow.Verdict_FORWARDED) // by the pod's answer

	click := o.newPage()
	click.look(t, pageRequest("front", func(f *flow.FlowFilter) { f.DestinationIdentity = []uint32{2} })) // the world's card
	click.await(t, "front/web > world:443", flow.Verdict_FORWARDED)

	if c, err := e2etest.DialWithin(time.Second, worker, "tcp4", "", e2etest.At(o.pod.IP4, 80)); err == nil {
		_ = c.Close()
		t.Error("a pod that may open no connection has one")
	}
	p.await(t, "back/worker > shop/cart:80", flow.Verdict_DROPPED)

	for _, p := range []*page{p, click} {
		p.mu.Lock()
		t.Log(p.links, p.cards, p.err)
		for link := range p.links {
			if strings.HasPrefix(link, "shop/cart > ") {
				t.Errorf("%s: an answer is shown as a connection", link)
			}
		}
		for id, name := range p.cards {
			if strings.HasPrefix(name, "no ") {
				t.Errorf("card %s: %s, among %v", id, name, p.links)
			}
		}
		if len(p.twice) > 0 {
			t.Errorf("two flows of the same time: %v", p.twice)
		}
		p.mu.Unlock()
	}
	if len(click.links) != 1 {
		t.Errorf("after the click: %v", click.links)
	}
	for range 8 { // relay has one connection to the node for all pages
		p = o.newPage()
		p.look(t, pageRequest("shop", nil))
		p.await(t, "front/web > shop/cart:80", flow.Verdict_FORWARDED)
	}
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	if st, err := p.client.ServerStatus(ctx, &observer.ServerStatusRequest{}); err != nil || st.GetNumConnectedNodes().GetValue() != 1 {
		t.Errorf("with ten pages: %v, %v", st, err)
	}
}
