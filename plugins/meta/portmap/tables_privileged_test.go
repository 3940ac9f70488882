// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// tablesWorld is a node where host ports are netfilter's.
type tablesWorld struct {
	*world
	runDir string
}

func newTablesWorld(t *testing.T, backend string) *tablesWorld {
	w := &tablesWorld{&world{plugintest.NewWorld(t, Name)}, filepath.Join(t.TempDir(), "run")}
	w.setDefault(backend)
	return w
}

// setDefault changes the node's backend.
func (w *tablesWorld) setDefault(backend string) {
	open, existing := plugintest.RealOpeners()
	w.Plugin = New(Deps{
		Opener: Opener{Open: open, OpenExisting: existing}, Resolve: loader.Resolve, Records: w.Records,
		Netfilter: func(*cniskel.Args) (Netfilter, error) {
			return choice.New(choice.Options{RunDir: w.runDir, Default: backend}), nil
		},
	})
}

// tablesConf publishes a port of an address.
func tablesConf(addr string, hostPort int) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"portmap",
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"},{"name":"net1","sandbox":"x"}],"ips":[{"address":"%s/16"}]},
		"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"}]}}`, addr, hostPort)
}

// rules are the lines of all tables that hold a word.
func (w *tablesWorld) rules(word string) string {
	w.T.Helper()
	var out string
	plugintest.Must(w.T, w.In(func() (err error) {
		out, err = netlab.Run("sh", "-c", "(iptables-legacy-save; iptables-nft-save; nft list ruleset) 2>/dev/null | grep -F -- '"+word+"' || true")
		return err
	}))
	return out
}

var everyTables = []string{netfilter.NameIPTablesNFT, netfilter.NameIPTablesLegacy, netfilter.NameNFTables}

// wantTraces wants the ports of so many attachments to be found.
func (w *tablesWorld) wantTraces(want int) {
	w.T.Helper()
	plugintest.Must(w.T, w.In(func() error {
		traces, err := choice.New(choice.Options{}).RuleSets(w.T.Context())
		if len(traces) != want {
			w.T.Errorf("traces %+v, not %d", traces, want)
		}
		return err
	}))
}

// A repeated ADD, after one whose DEL never came, may find the pod at another
// address: nothing of the first one stays, and no more is left after DEL.
func TestPrivilegedRepeatedAddElsewhere(t *testing.T) {
	for _, backend := range everyTables {
		t.Run(backend, func(t *testing.T) {
			w := newTablesWorld(t, backend)
			for _, addr := range []string{"10.1.0.2", "10.1.0.3"} {
				plugintest.Must(t, w.In(func() error { _, err := w.Add("a", tablesConf(addr, 8080)); return err }))
			}
			if left := w.rules("10.1.0.2"); left != "" {
				t.Errorf("the first ADD's rules after the second:\n%s", left)
			}
			plugintest.Must(t, w.In(func() error { return w.Del("a") }))
			if left := w.rules("10.1.0."); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// A container may be attached to one network twice. The names of iptables' chains
// leave the interface out: the ports of one attachment stay when the other comes,
// and when it goes.
func TestPrivilegedTwiceInOneNetwork(t *testing.T) {
	for _, backend := range everyTables {
		t.Run(backend, func(t *testing.T) {
			w := newTablesWorld(t, backend)
			first, second := w.Args("a", tablesConf("10.1.0.2", 8080)), w.Args("a", tablesConf("10.1.0.3", 8081))
			second.IfName = "net1"
			check := func(a *cniskel.Args, when string) {
				t.Helper()
				if err := w.In(func() error { return w.Plugin.Check(t.Context(), a) }); err != nil {
					t.Errorf("%s of %s: %v", when, a.IfName, err)
				}
			}
			add := func(a *cniskel.Args) {
				plugintest.Must(t, w.In(func() error { _, err := w.Plugin.Add(t.Context(), a); return err }))
			}
			add(first)
			add(second)
			check(first, "CHECK with both")
			check(second, "CHECK with both")
			add(second)
			check(first, "CHECK after another ADD")
			plugintest.Must(t, w.In(func() error { return w.Plugin.Del(t.Context(), second) }))
			check(first, "CHECK alone")
			if left := w.rules("10.1.0.3") + w.rules("8081"); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
			plugintest.Must(t, w.In(func() error { return w.Plugin.Del(t.Context(), first) }))
			if left := w.rules("10.1.0.") + w.rules("8080"); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
			add(first)
			add(second)
			plugintest.Must(t, w.In(func() error { return w.Records.Remove(second.Ref("net"), Name) }))
			w.wantTraces(2)
			plugintest.Must(t, w.In(func() error { return w.Plugin.Del(t.Context(), second) })) // without a record
			check(first, "CHECK after DEL without a record")
			add(second)
			plugintest.Must(t, w.In(func() error {
				return errors.Join(w.Records.Remove(second.Ref("net"), Name), w.Records.Remove(first.Ref("net"), Name))
			}))
			plugintest.Must(t, w.In(func() error {
				return w.Plugin.GC(t.Context(), w.Args("", []byte(`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`)))
			}))
			if left := w.rules("-j CNI-DN-"); left != "" {
				t.Errorf("left behind by GC:\n%s", left)
			}
		})
	}
}

// Two attachments of one container may have one address: two networks with one subnet, or one network twice. DEL of one leaves the ports
// of the other, also a port that both have.
func TestPrivilegedOneAddressTwice(t *testing.T) {
	for _, backend := range everyTables {
		for _, network := range []string{"net", "other"} {
			for _, hostPort := range []int{8080, 8081} {
				t.Run(fmt.Sprintf("%s-%s-%d", backend, network, hostPort), func(t *testing.T) {
					w := newTablesWorld(t, backend)
					first := w.Args("a", tablesConf("10.1.0.2", 8080))
					second := w.Args("a", bytes.Replace(tablesConf("10.1.0.2", hostPort), []byte(`"name":"net"`), []byte(`"name":"`+network+`"`), 1))
					second.IfName = "net1"
					do := func(what string, a *cniskel.Args, verb func(context.Context, *cniskel.Args) error) {
						t.Helper()
						if err := w.In(func() error { return verb(t.Context(), a) }); err != nil {
							t.Errorf("%s of %s: %v", what, a.IfName, err)
						}
					}
					add := func(ctx context.Context, a *cniskel.Args) error { _, err := w.Plugin.Add(ctx, a); return err }
					for _, order := range [][2]*cniskel.Args{{first, second}, {second, first}} {
						do("ADD", first, add)
						do("ADD", second, add)
						do("CHECK with both", first, w.Plugin.Check)
						do("CHECK with both", second, w.Plugin.Check)
						do("another ADD", first, add)
						do("CHECK after another ADD", first, w.Plugin.Check)
						do("CHECK after another ADD", second, w.Plugin.Check)
						do("DEL", order[0], w.Plugin.Del)
						do("CHECK alone", order[1], w.Plugin.Check)
						do("DEL", order[1], w.Plugin.Del)
						if left := w.rules("10.1.0."); left != "" {
							t.Errorf("left behind:\n%s", left)
						}
					}
				})
			}
		}
	}
}

// The node's default may change while pods are there. 127.0.0.1 reaches the one
// whose ADD came again by the other tables, and after the last DEL neither tables
// have anything left of it.
func TestPrivilegedLocalnetAcrossBackends(t *testing.T) {
	for _, backends := range [][2]string{{netfilter.NameIPTablesNFT, netfilter.NameNFTables}, {netfilter.NameNFTables, netfilter.NameIPTablesLegacy}} {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-%s-again-%v", backends[0], backends[1], again), func(t *testing.T) {
				w := newTablesWorld(t, backends[0])
				w.RunScripts("ip link add br0 type bridge", "ip addr add 10.1.0.1/16 dev br0", "ip addr add fd00:1::1/64 dev br0 nodad", "ip link set br0 up")
				w.pod("a", 2)
				w.pod("b", 3)
				second := "b"
				if again {
					second = "a"
				}
				localnet := func() string {
					s, err := w.Lab.Node.ReadSysctl("net/ipv4/conf/br0/route_localnet")
					plugintest.Must(t, err)
					return s
				}
				w.addReal("a", 2)
				w.setDefault(backends[1])
				w.addReal(second, 3)
				if !again {
					plugintest.Must(t, w.In(func() error { return w.Del("a") }))
				}
				if got := localnet(); got != "1" {
					t.Errorf("route_localnet is %q with a pod", got)
				}
				plugintest.Must(t, w.In(func() error { return w.Del(second) }))
				if got := localnet(); got != "0" {
					t.Errorf("route_localnet is %q after the last DEL", got)
				}
				if left := w.rules("br0") + w.rules("10.1.0."); left != "" {
					t.Errorf("left behind:\n%s", left)
				}
			})
		}
	}
}
