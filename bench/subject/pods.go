// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const (
	// BridgePods are the pods of a bridge: the kernel allows 1,023 ports. Each has a network of its own.
	BridgePods = 1000
	// NetnsPods are the attachments of a pod netns from ManyPods pods on: thousands of namespaces take gigabytes, and no packet
	// meets them.
	NetnsPods, ManyPods = 50, 1001
	// From usualPods on the maps need more room than they have by default: roomPerPod entries of "endpoints" for each pod, since a pod
	// has up to three limits of its rate, and each takes the room of six (docs/dev/adr/0026-map-sizes.md).
	usualPods, roomPerPod = 400, 18
	// The same of connections, which have two entries of "conntrack" each.
	usualConns, roomPerConn = 10000, 3
	// toolClients is how many connections the server answers at once: 32, and room for stragglers.
	toolClients = 40
	// Iperf3Port and SockperfPort are where these tools' servers listen, on the node as in the pod.
	Iperf3Port, SockperfPort = 5201, 11111
)

// ErrTime says that making the pods took too long.
var ErrTime = errors.New("the time for making pods was up")

type object = map[string]any

// conflist is the chain of the benchmark: a bridge with host-local addresses, published ports and the firewall's admission.
// i is the number of the bridge.
func (w *World) conflist(i int) ([]byte, error) {
	name := "bench"
	if i > 0 {
		name = fmt.Sprintf("bench%d", i)
	}
	bridge := object{
		"type": "bridge", "bridge": fmt.Sprintf("cni%d", i), "isGateway": true, "ipMasq": w.Masquerade, "hairpinMode": true,
		"ipam": object{
			"type":   "host-local",
			"ranges": [][]object{{{"subnet": fmt.Sprintf("10.%d.0.0/16", 88+i)}}},
			"routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}
	maps.Copy(bridge, w.Suite.BridgeKeys)
	portmap := object{"type": "portmap", "capabilities": object{"portMappings": true}}
	if w.Suite.Tables != "" {
		bridge["ipMasqBackend"], portmap["backend"] = w.Suite.Tables, w.Suite.Tables
	}
	return json.Marshal(object{"cniVersion": "1.0.0", "name": name, "plugins": []object{bridge, portmap, {"type": "firewall"}}})
}

// attachPods makes the pods, on as many bridges as they need, and returns where the server belongs.
func (w *World) attachPods(ctx context.Context, progress func(int)) (*netlab.NS, netip.AddrPort, error) {
	for i := range (w.Pods + BridgePods - 1) / BridgePods {
		list, err := w.conflist(i)
		if err != nil {
			return nil, netip.AddrPort{}, err
		}
		rt, err := w.lab.Node.CNI(netlab.CNIOptions{Path: []string{w.Suite.BinDir}, Conflist: list, Exec: w.Exec})
		if err != nil {
			return nil, netip.AddrPort{}, err
		}
		w.bridges = append(w.bridges, rt)
	}
	w.runtime = w.bridges[0]
	at := w.Pods / 2
	if w.LastPod {
		at = w.Pods - 1
	}
	start := time.Now()
	server, err := w.fill(ctx, at, progress)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	w.SetUp = time.Since(start)
	w.target = netip.AddrPortFrom(netlab.IP4(w.lab.Client().Uplink.Node), uint16(FirstHostPort+at))
	if w.scratch, err = w.lab.Node.NewPod("scratch"); err != nil {
		return nil, netip.AddrPort{}, err
	}
	return server, netip.AddrPortFrom(netip.IPv4Unspecified(), containerPort), w.disableIPv6(w.scratch.NS)
}

// fill attaches every pod, as many at once as Options say. The server's has a netns of its own, whatever their number.
func (w *World) fill(ctx context.Context, at int, progress func(int)) (server *netlab.NS, err error) {
	jobs := make(chan podJob)
	var mu sync.Mutex
	var errs []error
	done := 0
	var wg sync.WaitGroup
	for range max(1, w.Parallel) {
		wg.Go(func() {
			for j := range jobs {
				err := w.attach(ctx, j)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					done++
					progress(done)
				}
				mu.Unlock()
			}
		})
	}
	failed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(errs) > 0
	}
	shared, used := "", NetnsPods
	for i := 0; i < w.Pods && err == nil && !failed(); i++ {
		j := podJob{number: i, server: i == at}
		switch {
		case !w.Until.IsZero() && time.Now().After(w.Until):
			err = fmt.Errorf("%w: %d of %d pods attached", ErrTime, i, w.Pods)
			continue
		case j.server:
			server, j.netns, err = w.netns(i, true)
		case w.Pods < ManyPods:
			_, j.netns, err = w.netns(i, false)
		default:
			if used == NetnsPods {
				_, shared, err = w.netns(i, false)
				used = 0
			}
			j.netns, j.ifname = shared, fmt.Sprintf("eth%d", used)
			used++
		}
		if err == nil {
			jobs <- j
		}
	}
	close(jobs)
	wg.Wait()
	return server, errors.Join(append(errs, err, ctx.Err())...)
}

// podJob is one ADD.
type podJob struct {
	number        int
	netns, ifname string
	server        bool
}

func (w *World) attach(ctx context.Context, j podJob) error {
	a := w.attachment(fmt.Sprintf("pod%d", j.number), j.netns, FirstHostPort+j.number)
	a.IfName = j.ifname
	if j.server && w.Tools {
		a.Capabilities["portMappings"] = append(a.Capabilities["portMappings"].([]object), toolPorts()...)
	}
	if _, err := w.bridges[j.number/BridgePods].Add(ctx, a); err != nil {
		return fmt.Errorf("ADD of pod %d: %w", j.number, err)
	}
	return nil
}

// netns makes the namespace of a pod. Its path keeps it, unless it is wanted open.
func (w *World) netns(i int, open bool) (*netlab.NS, string, error) {
	pod, err := w.lab.Node.NewPod(fmt.Sprintf("pod%d", i))
	if err != nil {
		return nil, "", err
	}
	if err := w.disableIPv6(pod.NS); err != nil {
		return nil, "", err
	}
	if open {
		return pod.NS, pod.Path, nil
	}
	return nil, pod.Path, pod.Close()
}

func (w *World) disableIPv6(ns *netlab.NS) error {
	if !w.IPv4Only {
		return nil
	}
	var errs []error
	for _, of := range []string{"all", "default"} {
		errs = append(errs, ns.WriteSysctl("net/ipv6/conf/"+of+"/disable_ipv6", "1"))
	}
	return errors.Join(errs...)
}

func toolPorts() (ports []object) {
	for _, port := range []int{Iperf3Port, SockperfPort} {
		ports = append(ports, object{"hostPort": port, "containerPort": port, "protocol": "tcp"})
	}
	return ports
}

func (w *World) attachment(id, netns string, hostPort int) netlab.Attachment {
	ports := []object{{"hostPort": hostPort, "containerPort": containerPort, "protocol": "tcp"}}
	if w.Datagrams {
		ports = append(ports, object{"hostPort": hostPort, "containerPort": containerPort, "protocol": "udp"})
	}
	return netlab.Attachment{ContainerID: id, NetNS: netns, Capabilities: object{"portMappings": ports}}
}
