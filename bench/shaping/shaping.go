// SPDX-License-Identifier: Apache-2.0

// Package shaping measures what a limited pod gets: goodput of one TCP
// connection, and how long a small packet waits beside it. One node, one client
// on its uplink, one routed pod; the bandwidth plugin under test is the only
// one that runs.
package shaping

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Peer is a bandwidth plugin with the keys that make it what is compared.
type Peer struct {
	Name   string
	Plugin string // path of the binary; empty: no limit
	Keys   map[string]any
}

// World is the laboratory. The caller must Close it.
type World struct {
	lab *netlab.Lab
	pod *netlab.Pod
}

// The addresses of the pod, and of its host veth.
const (
	podName, hostEnd = "pod", "v0"
	podAddr          = "10.1.0.2"
)

// NewWorld makes node, client and pod.
func NewWorld() (_ *World, err error) {
	l, err := netlab.New(netlab.Options{ForwardIPv4: true})
	if err != nil {
		return nil, err
	}
	w := &World{lab: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.pod, err = l.Node.NewPod(podName); err != nil {
		return nil, err
	}
	return w, nil
}

// Close takes it apart.
func (w *World) Close() error { return w.lab.Close() }

func (w *World) ip(lines ...string) error {
	return w.lab.Node.Do(func() error {
		for _, l := range lines {
			if _, err := netlab.Run("sh", "-c", "ip "+l); err != nil {
				return err
			}
		}
		return nil
	})
}

// plug gives the pod a fresh device.
func (w *World) plug() error {
	return w.ip(
		"link add "+hostEnd+" type veth peer name eth0 netns "+podName,
		"addr add 10.1.0.1/24 dev "+hostEnd, "link set "+hostEnd+" up",
		"-n "+podName+" link set lo up", "-n "+podName+" addr add "+podAddr+"/24 dev eth0",
		"-n "+podName+" link set eth0 up", "-n "+podName+" route add default via 10.1.0.1")
}

func (w *World) unplug() error { return w.ip("link del " + hostEnd) }

// conf limits both directions to rate bits a second with a burst in bits.
func (p Peer) conf(rate, burst uint64) ([]byte, error) {
	c := map[string]any{
		"cniVersion": "1.0.0", "name": "net", "type": "bandwidth",
		"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst,
		"prevResult": map[string]any{
			"cniVersion": "1.0.0",
			"interfaces": []map[string]any{{"name": hostEnd}, {"name": "eth0", "sandbox": "/run/netns/" + podName}},
			"ips":        []map[string]any{{"interface": 1, "address": podAddr + "/24"}},
		},
	}
	for k, v := range p.Keys {
		c[k] = v
	}
	return json.Marshal(c)
}

// call runs the plugin on the node.
func (w *World) call(p Peer, verb string, conf []byte) error {
	if p.Plugin == "" {
		return nil
	}
	return w.lab.Node.Do(func() error {
		var out bytes.Buffer
		cmd := &exec.Cmd{
			Path: p.Plugin, Args: []string{"bandwidth"}, Stdin: bytes.NewReader(conf), Stdout: &out, Stderr: io.Discard,
			Env: append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+podName, "CNI_IFNAME=eth0",
				"CNI_NETNS=/run/netns/"+podName, "CNI_PATH=/opt/cni/bin"),
		}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: bandwidth %s: %w: %s", p.Name, verb, err, out.Bytes())
		}
		return nil
	})
}

// Figures are one direction under load.
type Figures struct {
	Goodput   float64       `json:"goodputMbit"` // payload, Mbit/s
	P50, P99  time.Duration // of the echo beside the load
	Lost      int           `json:"lost"` // echoes without an answer within a second
	IdleP50   time.Duration // of the echo before the load
	Efficient float64       `json:"efficient"` // goodput by rate
}

// Result is a peer at one rate.
type Result struct {
	Peer            string
	Rate            uint64 // bits a second
	Ingress, Egress Figures
}

// echoEvery is the pace of the echo: it takes less than half a percent of the rate.
func echoEvery(rate uint64) time.Duration {
	if rate < 10e6 {
		return 100 * time.Millisecond
	}
	return 10 * time.Millisecond
}

// Measure limits the pod to rate bits a second by p and loads each direction for
// the given time.
func (w *World) Measure(p Peer, rate uint64, d time.Duration) (r Result, err error) {
	if err := w.plug(); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.unplug()) }()
	conf, err := p.conf(rate, max(rate/100, 128<<10))
	if err != nil {
		return r, err
	}
	if err := w.call(p, "ADD", conf); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.call(p, "DEL", conf)) }()
	r = Result{Peer: p.Name, Rate: rate}
	client, every := w.lab.Client(), echoEvery(rate)
	if r.Ingress, err = load(client.NS, w.pod.NS, podAddr, every, d); err != nil {
		return r, fmt.Errorf("ingress: %w", err)
	}
	if r.Egress, err = load(w.pod.NS, client.NS, netlab.IP4(client.Uplink.Client).String(), every, d); err != nil {
		return r, fmt.Errorf("egress: %w", err)
	}
	r.Ingress.Efficient = r.Ingress.Goodput / (float64(rate) / 1e6)
	r.Egress.Efficient = r.Egress.Goodput / (float64(rate) / 1e6)
	return r, nil
}
