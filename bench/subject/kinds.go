// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Kind is a kind of traffic that a cluster carries: who talks to whom, and what is translated in between.
type Kind string

// The kinds. A Service's address is translated by rules of nftables with the shape of kube-proxy's.
const (
	HostPort       Kind = "hostport"        // a client outside to a published port
	NodePort       Kind = "nodeport"        // a client outside to a Service's port of the node
	Outbound       Kind = "outbound"        // a pod to a server outside
	ClusterIP      Kind = "clusterip"       // a pod to a Service whose backend is outside the node
	ClusterIPLocal Kind = "clusterip-local" // a pod to a Service whose backend is a pod of the node
	PodToPod       Kind = "pod"             // a pod to a pod of the node
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{HostPort, NodePort, Outbound, ClusterIP, ClusterIPLocal, PodToPod} }

// ports and addresses of the Service that is measured
const nodePort, servicePort = 30080, 80

var serviceIP = netip.MustParseAddr("10.96.0.10")

// ends says where client and server of the world's kind are, what the server listens on, and makes the target what the client asks for.
// pod and listen are those of the published port.
func (w *World) ends(ctx context.Context, pod *netlab.NS, listen netip.AddrPort) (client, server *netlab.NS, _ netip.AddrPort, err error) {
	outside := w.lab.Client().NS
	any80 := netip.AddrPortFrom(netip.IPv4Unspecified(), containerPort)
	backend := netip.AddrPortFrom(netlab.IP4(w.lab.Client().Uplink.Client), containerPort)
	switch w.Kind {
	case HostPort, "":
		return outside, pod, listen, nil
	case Outbound, ClusterIP:
		w.target = backend
		client, server, listen = pod, outside, any80
		if !w.Masquerade {
			if err := w.routeToPods(); err != nil {
				return nil, nil, listen, err
			}
		}
	case NodePort:
		client, server = outside, pod
		w.target = netip.AddrPortFrom(netlab.IP4(w.lab.Client().Uplink.Node), FirstHostPort)
	case ClusterIPLocal, PodToPod:
		client, server = pod, pod // host networking
		w.target = netip.AddrPortFrom(netlab.IP4(w.lab.Client().Uplink.Node), containerPort)
		listen = any80
	}
	if !w.HasChain() {
		return client, server, listen, nil
	}
	if w.Kind != Outbound && w.Kind != ClusterIP {
		if backend, err = addressOf(pod); err != nil {
			return nil, nil, listen, err
		}
	}
	if w.Kind == ClusterIPLocal || w.Kind == PodToPod {
		talker, err := w.lab.Node.NewPod("talker")
		if err != nil {
			return nil, nil, listen, err
		}
		a := w.attachment("talker", talker.Path, FirstHostPort+w.Pods+1)
		if _, err := w.runtime.Add(ctx, a); err != nil {
			return nil, nil, listen, fmt.Errorf("ADD of the talker: %w", err)
		}
		client, w.target = talker.NS, backend
	}
	switch w.Kind {
	case NodePort:
		w.target = netip.AddrPortFrom(w.target.Addr(), nodePort)
	case ClusterIP, ClusterIPLocal:
		w.target = netip.AddrPortFrom(serviceIP, servicePort)
	default:
		return client, server, listen, nil
	}
	return client, server, listen, w.services(backend)
}

// routeToPods lets the client answer pods at their own addresses.
func (w *World) routeToPods() error {
	via := netlab.IP4(w.lab.Client().Uplink.Node).String()
	return w.lab.Client().Do(func() error {
		_, err := netlab.Run("ip", "route", "replace", "10.88.0.0/16", "via", via)
		return err
	})
}

// addressOf returns where the server of a pod listens.
func addressOf(pod *netlab.NS) (at netip.AddrPort, err error) {
	err = pod.Do(func() error {
		out, err := netlab.Run("ip", "-4", "-o", "addr", "show", "dev", "eth0")
		if err != nil {
			return err
		}
		for field := range strings.FieldsSeq(out) {
			if p, err := netip.ParsePrefix(field); err == nil {
				at = netip.AddrPortFrom(p.Addr(), containerPort)
				return nil
			}
		}
		return fmt.Errorf("the pod has no address: %s", out)
	})
	return at, err
}

// services loads rules as kube-proxy's nftables mode has them, for as many Services as Options say: a map by address, protocol and port,
// asked for each new connection.
func (w *World) services(backend netip.AddrPort) error {
	var b strings.Builder
	b.WriteString("table ip kube-proxy {\nmap services {\ntype ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service\nelements = {\n")
	fmt.Fprintf(&b, "%s . tcp . %d : %s . %d", w.target.Addr(), w.target.Port(), backend.Addr(), backend.Port())
	other := netip.MustParseAddr("10.97.0.1")
	for range max(0, w.Services-1) {
		fmt.Fprintf(&b, ",\n%s . tcp . 80 : 10.244.1.1 . 8080", other)
		other = other.Next()
	}
	b.WriteString("\n}\n}\nchain services {\ndnat ip to ip daddr . ip protocol . th dport map @services\n}\n" +
		"chain prerouting {\ntype nat hook prerouting priority dstnat;\njump services\n}\n" +
		"chain output {\ntype nat hook output priority -100;\njump services\n}\n" +
		"chain forward {\ntype filter hook forward priority 0;\nct state invalid drop\n}\n}\n")
	return w.lab.Node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(b.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("load the rules of %d Services: %w: %s", w.Services, err, out)
		}
		return nil
	})
}

// serveIn starts the agents of the traffic.
func (w *World) serveIn(client, server *netlab.NS, listen netip.AddrPort) (err error) {
	if w.server, err = traffic.Start(server); err != nil {
		return err
	}
	if w.client, err = traffic.Start(client); err != nil {
		return err
	}
	serve := traffic.Request{Op: "serve", Addr: listen}
	if w.Tools {
		serve.Conns = toolClients
	}
	_, err = w.server.Call(serve)
	return err
}
