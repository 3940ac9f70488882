// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// newTablesWorld is a node with a bridge where the firewall is netfilter's.
func newTablesWorld(t *testing.T) *world {
	w := &world{plugintest.NewWorld(t, Name)}
	dir := filepath.Join(t.TempDir(), "run")
	open, existing := plugintest.RealOpeners()
	w.Plugin = New(Deps{
		Opener: Opener{Open: open, OpenExisting: existing}, Resolve: loader.Resolve, Records: w.Records,
		Netfilter: func(*cniskel.Args) (Netfilter, error) {
			return choice.New(choice.Options{RunDir: dir}), nil
		},
	})
	w.RunScripts("ip link add br0 type bridge", "ip link add br1 type bridge")
	return w
}

// tablesConf isolates a bridge for an address.
func tablesConf(backend, policy, bridge, addr string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"firewall","backend":%q,"ingressPolicy":%q,
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":%q},{"name":"eth0","sandbox":"x"}],"ips":[{"interface":1,"address":"%s/16"}]}}`, backend, policy, bridge, addr)
}

// rules are the lines of all tables that hold a word.
func (w *world) rules(word string) string {
	w.T.Helper()
	var out string
	w.do(func() (err error) {
		out, err = netlab.Run("sh", "-c", "(iptables-legacy-save; iptables-nft-save; nft list table inet sluice_firewall) 2>/dev/null | grep -F -- '"+word+"' || true")
		return err
	})
	return out
}

// A repeated ADD, after one whose DEL never came, may find the pod at another
// address and on another bridge: who has the first address next is not admitted.
func TestPrivilegedRepeatedAddElsewhere(t *testing.T) {
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			w := newTablesWorld(t)
			second := tablesConf(backend, "same-bridge", "br1", "10.1.0.3")
			for _, conf := range [][]byte{tablesConf(backend, "isolated", "br0", "10.1.0.2"), second, second} {
				w.do(func() error { _, err := w.Add("a", conf); return err })
			}
			if left := w.rules("10.1.0.2") + w.rules("br0"); left != "" {
				t.Errorf("the first ADD's rules after the second:\n%s", left)
			}
			w.do(func() error { return w.Plugin.Check(t.Context(), w.Args("a", second)) })
			w.do(func() error { return w.Del("a") })
			if left := w.rules("10.1.0.") + w.rules("br0") + w.rules("br1"); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// Another backend's pods on the same bridge do not need this one's isolation.
func TestPrivilegedIsolationGoesWithItsBackend(t *testing.T) {
	w := newTablesWorld(t)
	w.do(func() error { _, err := w.Add("a", tablesConf("iptables", "isolated", "br0", "10.1.0.2")); return err })
	w.do(func() error { _, err := w.Add("b", tablesConf("nftables", "isolated", "br0", "10.1.0.3")); return err })
	w.do(func() error { return w.Del("a") })
	w.do(func() error {
		return w.Plugin.Check(t.Context(), w.Args("b", tablesConf("nftables", "isolated", "br0", "10.1.0.3")))
	})
	w.do(func() error { return w.Del("b") })
	if left := w.rules("br0"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// Where firewalld admits, tables isolate, and a reload of firewalld may flush
// them: CHECK misses that too.
func TestPrivilegedCheckOfIsolationByFirewalld(t *testing.T) {
	w := newTablesWorld(t)
	conf := tablesConf("firewalld", "isolated", "br0", "10.1.0.2")
	check := func() error {
		return w.In(func() error { return w.Plugin.Check(t.Context(), w.Args("a", conf)) })
	}
	by := section{Backend: netfilter.NameFirewalld, Bridge: "br0", IsolatedBy: netfilter.NameIPTablesNFT}
	plugintest.Must(t, w.In(func() error { return w.Records.Begin(plugintest.Ref("a"), "", Name, by) }))
	if err := check(); !errors.Is(err, netfilter.ErrDiffers) {
		t.Errorf("CHECK without the isolation: %v", err)
	}
	w.do(func() error {
		iptables, _ := choice.New(choice.Options{}).Named(netfilter.NameIPTablesNFT)
		return iptables.AddFirewall(t.Context(), netfilter.Firewall{
			Ref: plugintest.Ref("a"), Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}, Policy: netfilter.PolicyIsolated, Bridge: "br0",
		})
	})
	if err := check(); errors.Is(err, netfilter.ErrDiffers) { // there is no firewalld here, which is another error
		t.Errorf("CHECK with the isolation: %v", err)
	}
}
