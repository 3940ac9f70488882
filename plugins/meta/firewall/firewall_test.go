// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

const prev = `{"cniVersion":"1.0.0",
	"interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/run/netns/a"}],
	"ips":[{"interface":1,"address":"10.1.0.2/16"},{"interface":1,"address":"fd00::2/64"},{"interface":0,"address":"10.9.0.1/16"}]}`

// netconf returns a configuration with extra keys and a previous result.
func netconf(extra string) []byte {
	if extra != "" {
		extra = "," + extra
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","type":"firewall","prevResult":%s%s}`, prev, extra)
}

func (n *node) wantEmpty() {
	n.T.Helper()
	if len(n.dp.Held) != 0 || n.RecordCount() != 0 {
		n.T.Errorf("left behind: endpoints %v, %d records", n.dp.Held, n.RecordCount())
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		extra string
		code  uint // 0: accepted
		want  string
	}{
		{``, 0, ""},
		{`"backend":"auto","ingressPolicy":"open"`, 0, ""},
		{`"backend":"ebpf","firewalldZone":"home"`, 0, ""},
		{`"backend":"ebpf","iptablesAdminChainName":"X"`, cnierr.CodeUnsupported, `iptablesAdminChainName "X"`}, // no netfilter here
		{`"firewalldZone":"home\nwork"`, cnierr.CodeConfig, `firewalldZone "home`},
		{`"firewalldZone":"\u001b[2J"`, cnierr.CodeConfig, "firewalldZone"},
		{`"firewalldZone":"a b"`, cnierr.CodeConfig, "firewalldZone"},
		{`"firewalldZone":"` + strings.Repeat("z", 65) + `"`, cnierr.CodeConfig, "firewalldZone"},
		{`"backend":"iptables"`, cnierr.CodeUnsupported, `backend "iptables"`},
		{`"backend":"firewalld"`, cnierr.CodeUnsupported, `backend "firewalld"`},
		{`"backend":"nftables"`, cnierr.CodeUnsupported, `backend "nftables"`},
		{`"backend":"pf"`, cnierr.CodeConfig, `backend "pf"`},
		{`"ingressPolicy":"same-bridge"`, 0, ""},
		{`"ingressPolicy":"isolated","rules":{"egressDefault":"deny"}`, 0, ""},
		{`"rules":{"ingress":[{"action":"deny","cidrs":["10.0.0.0/8"],"protocol":"tcp","ports":[80,"8000-8100"]}]}`, 0, ""},
		{`"rules":{"ingres":[]}`, cnierr.CodeConfig, `unknown field "ingres"`},
		{`"rules":{"egress":[{"action":"drop"}]}`, cnierr.CodeConfig, `rules.egress[0].action "drop"`},
		{`"rules":{"egress":[{"action":"allow"}]}`, cnierr.CodeConfig, `rules.egressDefault`},
		{`"rules":{"ingress":[{"action":"deny","cidrs":["10.0.0.1/8"]}]}`, cnierr.CodeConfig, `rules.ingress[0].cidrs[0] "10.0.0.1/8"`},
		{`"rules":{"ingress":[{"action":"deny","ports":["80-70"]}]}`, cnierr.CodeConfig, `rules.ingress[0].ports[0] "80-70"`},
		{`"rules":{"ingress":[{"action":"deny","protocol":"icmp","ports":["8"]}]}`, cnierr.CodeConfig, `ICMP has no ports`},
		{`"networkPolicy":true`, cnierr.CodeConfig, `networkPolicy "true": needs K8S_POD_UID`},
		{`"networkPolicy":"yes"`, cnierr.CodeDecode, `networkPolicy`},
		{`"ingressPolicy":"closed"`, cnierr.CodeConfig, `ingressPolicy "closed"`},
		{`"ingressPolicy":1`, cnierr.CodeDecode, `ingressPolicy`},
	}
	for _, tt := range tests {
		t.Run(tt.extra, func(t *testing.T) {
			n := newNode(t)
			_, err := n.Add("a", netconf(tt.extra))
			if tt.code == 0 {
				plugintest.Must(t, err)
				return
			}
			n.WantCode(err, tt.code)
			if msg := cnierr.From(err).Msg; !strings.Contains(msg, tt.want) {
				t.Errorf("message %q lacks %q", msg, tt.want)
			}
			if n.dp.Loads != 0 {
				t.Error("loaded the datapath before it refused")
			}
			n.wantEmpty()
			plugintest.Must(t, n.Plugin.Del(t.Context(), n.Args("a", netconf(""))))
		})
	}
}

func TestAddDel(t *testing.T) {
	n := newNode(t)
	res := n.MustAdd("a", netconf(""))
	if res.Version() != "1.0.0" {
		t.Errorf("result of version %s", res.Version())
	}
	ep := n.dp.Held[plugintest.Owner("a")]
	if ep == nil || ep.Features != loader.FeatureAdmit {
		t.Fatalf("endpoint %+v", ep)
	}
	if diff := cmp.Diff("[10.1.0.2/16 fd00::2/64]", fmt.Sprint(ep.Addrs)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	n.MustAdd("a", netconf("")) // again
	plugintest.Must(t, n.Plugin.Check(t.Context(), n.Args("a", netconf(""))))
	n.MustDel("a")
	n.MustDel("a")
	n.wantEmpty()
}

// NetworkPolicy is about the pod that the runtime names.
func TestNetworkPolicy(t *testing.T) {
	n := newNode(t)
	call := n.Args("a", netconf(`"networkPolicy":true`))
	for _, args := range []string{"", "K8S_POD_UID=7", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop", "IgnoreUnknown=1;K8S_POD_UID=;K8S_POD_NAMESPACE=shop"} {
		call.Args = args
		_, err := n.Plugin.Add(t.Context(), call)
		n.WantCode(err, cnierr.CodeConfig)
		n.wantEmpty()
	}
	call.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=a;K8S_POD_UID=7;OTHER=1"
	_, err := n.Plugin.Add(t.Context(), call)
	plugintest.Must(t, err)
	if ep := n.dp.Held[plugintest.Owner("a")]; ep == nil || ep.NetworkPolicy != (loader.NetworkPolicyPod{UID: "7", Namespace: "shop"}) {
		t.Errorf("endpoint %+v", ep)
	}
	plugintest.Must(t, n.Plugin.Check(t.Context(), call))
	n.MustDel("a") // names no pod
	n.wantEmpty()
	call.StdinData = netconf(`"networkPolicy":true,"backend":"nftables"`)
	_, err = n.Plugin.Add(t.Context(), call)
	n.WantCode(err, cnierr.CodeUnsupported)
	if msg := cnierr.From(err).Msg; !strings.Contains(msg, `networkPolicy "true"`) {
		t.Errorf("message %q", msg)
	}
}

func TestOtherFeaturesStay(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", netconf(""))
	plugintest.Must(t, n.Records.Begin(plugintest.Ref("a"), "", "bridge", nil))
	n.dp.Held[plugintest.Owner("a")].Features |= loader.FeatureMasquerade
	n.MustDel("a")
	if ep := n.dp.Held[plugintest.Owner("a")]; ep == nil || ep.Features != loader.FeatureMasquerade {
		t.Errorf("endpoint %+v", ep)
	}
	if n.RecordCount() != 1 {
		t.Error("took the other plugin's record")
	}
}

func TestAddWithoutAddress(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", []byte(`{"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}]}}`))
	if n.dp.Loads != 0 {
		t.Error("loaded the datapath")
	}
	n.wantEmpty()
}

func TestAddNeedsPrevResult(t *testing.T) {
	n := newNode(t)
	bare := []byte(`{"cniVersion":"1.0.0","name":"net","type":"firewall"}`)
	_, err := n.Add("a", bare)
	n.WantCode(err, cnierr.CodeConfig)
	n.WantCode(n.Plugin.Check(t.Context(), n.Args("a", bare)), cnierr.CodeConfig)
}

func TestAddRollsBack(t *testing.T) {
	n := newNode(t)
	n.dp.Fail["Enable"] = errors.New("boom")
	_, err := n.Add("a", netconf(""))
	n.WantCode(err, cnierr.CodeKernel)
	n.wantEmpty()
}

func TestUnavailable(t *testing.T) {
	n := newNode(t)
	n.dp.OpenErr = fmt.Errorf("%w: no bpffs", loader.ErrUnavailable)
	_, err := n.Add("a", netconf(`"backend":"auto"`))
	n.WantCode(err, cnierr.CodeNoDatapath)
	n.WantCode(n.Plugin.Status(t.Context(), n.Args("", netconf(""))), cnierr.CodeUnavailable)
	n.wantEmpty()
	n.MustDel("a")
}

func TestDelWithoutRecord(t *testing.T) {
	for _, size := range []int64{-1, 0, 12} {
		n := newNode(t)
		n.MustAdd("a", netconf(""))
		files, err := filepath.Glob(n.Records.Path() + "/*.json")
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		if size < 0 {
			plugintest.Must(t, os.Remove(files[0]))
		} else {
			plugintest.Must(t, os.Truncate(files[0], size))
		}
		n.MustDel("a")
		n.wantEmpty()
	}
}

func TestDelNeverLoaded(t *testing.T) {
	n := newNode(t)
	n.MustDel("a")
	if n.dp.Loads != 0 {
		t.Error("DEL loaded the datapath")
	}
}

func TestDelMapsGone(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", netconf(""))
	n.dp.Fail["Disable"] = fmt.Errorf("%w: no map", loader.ErrNotLoaded)
	n.MustDel("a")
	if n.RecordCount() != 0 {
		t.Error("the record stays")
	}
}

func TestDelKeepsRecordOnFailure(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", netconf(""))
	n.dp.Fail["Disable"] = errors.New("boom")
	n.WantCode(n.Del("a"), cnierr.CodeKernel)
	delete(n.dp.Fail, "Disable")
	n.MustDel("a")
	n.wantEmpty()
}

func TestCheck(t *testing.T) {
	n := newNode(t)
	check := func() error { return n.Plugin.Check(t.Context(), n.Args("a", netconf(""))) }
	n.WantCode(check(), cnierr.CodeCheck) // nothing loaded
	n.MustAdd("a", netconf(""))
	plugintest.Must(t, check())
	n.dp.Held[plugintest.Owner("a")].Addrs = nil
	n.WantCode(check(), cnierr.CodeCheck)
	clear(n.dp.Held)
	n.WantCode(check(), cnierr.CodeCheck)
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	plugintest.Must(t, n.Plugin.Status(t.Context(), n.Args("", netconf(""))))
	n.WantCode(n.Plugin.Status(t.Context(), n.Args("", netconf(`"ingressPolicy":"closed"`))), cnierr.CodeConfig)
}

func TestGC(t *testing.T) {
	n := newNode(t)
	for _, id := range []string{"keep", "drop", "lost", "lostgone"} {
		n.MustAdd(id, netconf(""))
	}
	for _, id := range []string{"lost", "lostgone"} {
		plugintest.Must(t, n.Records.Remove(plugintest.Ref(id), Name))
	}
	n.dp.Held[plugintest.Owner("lostgone")].Gone = true
	plugintest.Must(t, n.Plugin.GC(t.Context(), n.Args("", []byte(`{"name":"net","cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}`))))
	for id, want := range map[string]bool{"keep": true, "drop": false, "lost": true, "lostgone": false} {
		if got := n.dp.Held[plugintest.Owner(id)] != nil; got != want {
			t.Errorf("%s is there: %v, want %v", id, got, want)
		}
	}
	if n.RecordCount() != 1 {
		t.Errorf("%d records", n.RecordCount())
	}
}
