// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// World is a node of netlab on which a Caller's plugin has the real datapath,
// which goes with the test. The test sets Plugin.
type World struct {
	*Caller
	Lab *netlab.Lab
}

// NewWorld makes a node that forwards, with a client on its eth0.
func NewWorld(t testing.TB, kind string) *World {
	w := &World{
		Caller: &Caller{T: t, Type: kind, Records: attachments.Open(attachments.DefaultDir)},
		Lab:    netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true}),
	}
	t.Cleanup(func() { _ = w.In(unload) }) // or its programs live as long as the devices
	w.noDAD(w.Lab.Node.NS)
	return w
}

// RealOpeners are loader.Open and loader.OpenExisting as a plugin wants them.
func RealOpeners() (open, existing func(context.Context, *cniskel.Args) (loader.Interface, error)) {
	by := func(f func(context.Context, loader.Options) (*loader.Datapath, error)) func(context.Context, *cniskel.Args) (loader.Interface, error) {
		return func(ctx context.Context, _ *cniskel.Args) (loader.Interface, error) {
			dp, err := f(ctx, loader.Options{Loader: ebpfload.InProcess{}})
			if err != nil {
				return nil, err
			}
			return dp, nil
		}
	}
	return by(loader.Open), by(loader.OpenExisting)
}

func unload() error {
	dp, err := loader.OpenExisting(context.Background(), loader.Options{})
	if err != nil {
		return err
	}
	defer dp.Close()
	return dp.Unload(context.Background())
}

// noDAD makes link-local addresses usable at once.
func (w *World) noDAD(ns *netlab.NS) {
	w.T.Helper()
	Must(w.T, ns.WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
}

// In runs f on a thread of the node.
func (w *World) In(f func() error) error { return w.Lab.Node.Do(f) }

// RunScripts runs shell commands on the node.
func (w *World) RunScripts(lines ...string) {
	w.T.Helper()
	Must(w.T, w.In(func() error {
		for _, l := range lines {
			if _, err := netlab.Run("sh", "-c", l); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Pod makes a namespace on the node that answers HTTP with text on port 80. Its
// devices are the caller's.
func (w *World) Pod(name, text string) *netlab.Pod {
	w.T.Helper()
	p := w.Lab.Node.PodT(w.T, name)
	w.noDAD(p.NS)
	stop, err := p.ServeHTTP("[::]:80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, text) }))
	Must(w.T, err)
	w.T.Cleanup(func() { _ = stop() })
	return p
}

// AwaitAddresses waits until no address of the node and the client is tentative: what
// leaves before that may be lost, and addresses that appear later are news in a
// snapshot.
func (w *World) AwaitAddresses() {
	w.T.Helper()
	for _, ns := range []*netlab.NS{w.Lab.Node.NS, w.Lab.Client().NS} {
		deadline := time.Now().Add(netlab.Patient(10 * time.Second))
		for tentative := "?"; tentative != ""; {
			Must(w.T, ns.Do(func() (err error) {
				tentative, err = netlab.Run("ip", "-6", "-o", "addr", "show", "tentative")
				return err
			}))
			if time.Now().After(deadline) {
				w.T.Fatalf("%s: still tentative: %s", ns.Name, tentative)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// Snapshot is what the node looks like.
func (w *World) Snapshot() netlab.Snapshot {
	w.T.Helper()
	s, err := w.Lab.Node.Snapshot()
	Must(w.T, err)
	return s
}
