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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) wantEmpty() {
	n.t.Helper()
	if len(n.dp.endpoints) != 0 || n.recordCount() != 0 {
		n.t.Errorf("left behind: endpoints %v, %d records", n.dp.endpoints, n.recordCount())
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
		{`"backend":"ebpf","iptablesAdminChainName":"X","firewalldZone":"home"`, 0, ""},
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
		{`"ingressPolicy":"closed"`, cnierr.CodeConfig, `ingressPolicy "closed"`},
		{`"ingressPolicy":1`, cnierr.CodeDecode, `ingressPolicy`},
	}
	for _, tt := range tests {
		t.Run(tt.extra, func(t *testing.T) {
			n := newNode(t)
			_, err := n.add("a", netconf(tt.extra))
			if tt.code == 0 {
				must(t, err)
				return
			}
			n.wantCode(err, tt.code)
			if msg := cnierr.From(err).Msg; !strings.Contains(msg, tt.want) {
				t.Errorf("message %q lacks %q", msg, tt.want)
			}
			if n.dp.loads != 0 {
				t.Error("loaded the datapath before it refused")
			}
			n.wantEmpty()
			must(t, n.plugin.Del(t.Context(), n.args("a", netconf(""))))
		})
	}
}

func TestAddDel(t *testing.T) {
	n := newNode(t)
	res := n.mustAdd("a", netconf(""))
	if res.Version() != "1.0.0" {
		t.Errorf("result of version %s", res.Version())
	}
	ep := n.dp.endpoints[owner("a")]
	if ep == nil || ep.features != loader.FeatureAdmit {
		t.Fatalf("endpoint %+v", ep)
	}
	if diff := cmp.Diff("[10.1.0.2/16 fd00::2/64]", fmt.Sprint(ep.Addrs)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	n.mustAdd("a", netconf("")) // again
	must(t, n.plugin.Check(t.Context(), n.args("a", netconf(""))))
	n.mustDel("a")
	n.mustDel("a")
	n.wantEmpty()
}

func TestOtherFeaturesStay(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", netconf(""))
	must(t, n.records.Begin(refNamed("a"), "", "bridge", nil))
	n.dp.endpoints[owner("a")].features |= loader.FeatureMasquerade
	n.mustDel("a")
	if ep := n.dp.endpoints[owner("a")]; ep == nil || ep.features != loader.FeatureMasquerade {
		t.Errorf("endpoint %+v", ep)
	}
	if n.recordCount() != 1 {
		t.Error("took the other plugin's record")
	}
}

func TestAddWithoutAddress(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", []byte(`{"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}]}}`))
	if n.dp.loads != 0 {
		t.Error("loaded the datapath")
	}
	n.wantEmpty()
}

func TestAddNeedsPrevResult(t *testing.T) {
	n := newNode(t)
	bare := []byte(`{"cniVersion":"1.0.0","name":"net","type":"firewall"}`)
	_, err := n.add("a", bare)
	n.wantCode(err, cnierr.CodeConfig)
	n.wantCode(n.plugin.Check(t.Context(), n.args("a", bare)), cnierr.CodeConfig)
}

func TestAddRollsBack(t *testing.T) {
	n := newNode(t)
	n.dp.fail["Enable"] = errors.New("boom")
	_, err := n.add("a", netconf(""))
	n.wantCode(err, cnierr.CodeKernel)
	n.wantEmpty()
}

func TestUnavailable(t *testing.T) {
	n := newNode(t)
	n.dp.openErr = fmt.Errorf("%w: no bpffs", loader.ErrUnavailable)
	_, err := n.add("a", netconf(`"backend":"auto"`))
	n.wantCode(err, cnierr.CodeNoDatapath)
	n.wantCode(n.plugin.Status(t.Context(), n.args("", netconf(""))), cnierr.CodeUnavailable)
	n.wantEmpty()
	n.mustDel("a")
}

func TestDelWithoutRecord(t *testing.T) {
	for _, size := range []int64{-1, 0, 12} {
		n := newNode(t)
		n.mustAdd("a", netconf(""))
		files, err := filepath.Glob(n.records.Path() + "/*.json")
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		if size < 0 {
			must(t, os.Remove(files[0]))
		} else {
			must(t, os.Truncate(files[0], size))
		}
		n.mustDel("a")
		n.wantEmpty()
	}
}

func TestDelNeverLoaded(t *testing.T) {
	n := newNode(t)
	n.mustDel("a")
	if n.dp.loads != 0 {
		t.Error("DEL loaded the datapath")
	}
}

func TestDelMapsGone(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", netconf(""))
	n.dp.fail["Disable"] = fmt.Errorf("%w: no map", loader.ErrNotLoaded)
	n.mustDel("a")
	if n.recordCount() != 0 {
		t.Error("the record stays")
	}
}

func TestDelKeepsRecordOnFailure(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", netconf(""))
	n.dp.fail["Disable"] = errors.New("boom")
	n.wantCode(n.del("a"), cnierr.CodeKernel)
	delete(n.dp.fail, "Disable")
	n.mustDel("a")
	n.wantEmpty()
}

func TestCheck(t *testing.T) {
	n := newNode(t)
	check := func() error { return n.plugin.Check(t.Context(), n.args("a", netconf(""))) }
	n.wantCode(check(), cnierr.CodeCheck) // nothing loaded
	n.mustAdd("a", netconf(""))
	must(t, check())
	n.dp.endpoints[owner("a")].Addrs = nil
	n.wantCode(check(), cnierr.CodeCheck)
	clear(n.dp.endpoints)
	n.wantCode(check(), cnierr.CodeCheck)
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	must(t, n.plugin.Status(t.Context(), n.args("", netconf(""))))
	n.wantCode(n.plugin.Status(t.Context(), n.args("", netconf(`"ingressPolicy":"closed"`))), cnierr.CodeConfig)
}

func TestGC(t *testing.T) {
	n := newNode(t)
	for _, id := range []string{"keep", "drop", "lost", "lostgone"} {
		n.mustAdd(id, netconf(""))
	}
	for _, id := range []string{"lost", "lostgone"} {
		must(t, n.records.Remove(refNamed(id), Name))
	}
	n.dp.endpoints[owner("lostgone")].gone = true
	must(t, n.plugin.GC(t.Context(), n.args("", []byte(`{"name":"net","cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]}`))))
	for id, want := range map[string]bool{"keep": true, "drop": false, "lost": true, "lostgone": false} {
		if got := n.dp.endpoints[owner(id)] != nil; got != want {
			t.Errorf("%s is there: %v, want %v", id, got, want)
		}
	}
	if n.recordCount() != 1 {
		t.Errorf("%d records", n.recordCount())
	}
}
