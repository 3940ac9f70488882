// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/version"
)

const (
	web  = `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`
	dns  = `{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1"}`
	prev = `{"cniVersion":"1.0.0",
		"interfaces":[{"name":"cni0"},{"name":"veth0"},{"name":"eth0","sandbox":"/run/netns/a"}],
		"ips":[{"interface":2,"address":"10.1.0.2/16"},{"interface":2,"address":"fd00::2/64"}]}`
)

// withPrev returns a configuration with a previous result.
func withPrev(extra, mappings string) []byte {
	if extra != "" {
		extra += ","
	}
	return netconf(extra+`"prevResult":`+prev, mappings)
}

func TestAddDel(t *testing.T) {
	n := newNode(t)
	res := n.mustAdd("a", withPrev("", web+","+dns))
	var got, want any
	var buf bytes.Buffer
	if err := res.PrintTo(&buf); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(json.Unmarshal(buf.Bytes(), &got), json.Unmarshal([]byte(prev), &want)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result is not the previous one (-want +got):\n%s", diff)
	}
	if len(n.dp.ports) != 3 { // web in two families, dns in one
		t.Errorf("ports: %v", n.dp.ports)
	}
	ep := n.dp.endpoints[owner("a")]
	if ep == nil || ep.features != loader.FeaturePublish || len(ep.Addrs) != 2 || ep.HostIfindex != 7 {
		t.Errorf("endpoint: %+v", ep)
	}
	if n.recordCount() != 1 {
		t.Errorf("%d records", n.recordCount())
	}
	n.mustDel("a")
	n.mustDel("a")
	n.wantEmpty()
}

func (n *node) wantEmpty() {
	n.t.Helper()
	if len(n.dp.ports) != 0 || len(n.dp.endpoints) != 0 || n.recordCount() != 0 {
		n.t.Errorf("left behind: ports %v, endpoints %v, %d records", n.dp.ports, n.dp.endpoints, n.recordCount())
	}
}

func TestAddNothingToDo(t *testing.T) {
	noIPs := strings.NewReplacer(`{"interface":2,"address":"10.1.0.2/16"},{"interface":2,"address":"fd00::2/64"}`, "").Replace(prev)
	tests := []struct {
		name  string
		stdin []byte
	}{
		{"no mapping", withPrev("", "")},
		{"no runtimeConfig", []byte(`{"cniVersion":"1.0.0","name":"net","prevResult":` + prev + `}`)},
		{"no address", netconf(`"prevResult":`+noIPs, web)},
		{"no address of the family", netconf(`"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"fd00::2/64"}]}`, dns)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.mustAdd("a", tt.stdin)
			if n.dp.loads != 0 {
				t.Error("loaded the datapath")
			}
			n.wantEmpty()
			n.mustDel("a")
		})
	}
}

func TestAddNeedsPrevResult(t *testing.T) {
	n := newNode(t)
	_, err := n.add("a", netconf("", web))
	n.wantCode(err, cnierr.CodeConfig)
	n.wantCode(n.plugin.Check(t.Context(), n.args("a", netconf("", web))), cnierr.CodeConfig)
	n.wantEmpty()
}

func TestAddBadInputHasNoEffect(t *testing.T) {
	n := newNode(t)
	_, err := n.add("a", withPrev("", web+`,{"hostPort":70000,"containerPort":80,"protocol":"tcp"}`))
	n.wantCode(err, cnierr.CodeConfig)
	if n.dp.loads != 0 {
		t.Error("loaded the datapath")
	}
	n.wantEmpty()
	// The runtime sends the same configuration to DEL.
	if err := n.plugin.Del(t.Context(), n.args("a", withPrev(`"backend":"nonsense"`, `{"hostPort":70000}`))); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

func TestAddRollsBack(t *testing.T) {
	boom := errors.New("boom")
	for _, method := range []string{"Enable", "Publish"} {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			n.dp.fail[method] = boom
			_, err := n.add("a", withPrev("", web))
			n.wantCode(err, cnierr.CodeKernel)
			n.wantEmpty()
		})
	}
	t.Run("resolve", func(t *testing.T) {
		n := newNode(t)
		a := n.args("a", withPrev("", web))
		a.Netns = ""
		_, err := n.plugin.Add(t.Context(), a)
		n.wantCode(err, cnierr.CodeKernel)
		n.wantEmpty()
	})
}

func TestUnavailable(t *testing.T) {
	n := newNode(t)
	n.dp.openErr = fmt.Errorf("%w: kernel 4.19 has no bpf_redirect_neigh", loader.ErrUnavailable)
	_, err := n.add("a", withPrev(`"backend":"auto"`, web))
	n.wantCode(err, cnierr.CodeNoDatapath)
	if !strings.Contains(cnierr.From(err).Details, "bpf_redirect_neigh") {
		t.Errorf("no reason in %v", err)
	}
	n.wantCode(n.plugin.Status(t.Context(), n.args("", netconf("", ""))), cnierr.CodeUnavailable)
	n.wantEmpty()
	n.mustDel("a")
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	if err := n.plugin.Status(t.Context(), n.args("", netconf("", ""))); err != nil {
		t.Error(err)
	}
	n.wantCode(n.plugin.Status(t.Context(), n.args("", netconf(`"backend":"x"`, ""))), cnierr.CodeConfig)
}

func TestLastAddWins(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", withPrev("", web))
	n.mustAdd("b", withPrev("", web))
	for _, p := range n.dp.ports {
		if p.owner != owner("b") {
			t.Errorf("%v still belongs to the first", p)
		}
	}
	n.wantCode(n.plugin.Check(t.Context(), n.args("a", withPrev("", web))), cnierr.CodeCheck)
	n.mustDel("a")
	if len(n.dp.ports) != 2 {
		t.Errorf("DEL of the first took the second's ports: %v", n.dp.ports)
	}
	if err := n.plugin.Check(t.Context(), n.args("b", withPrev("", web))); err != nil {
		t.Errorf("CHECK of the second: %v", err)
	}
	n.mustDel("b")
	n.wantEmpty()
}

func TestRepeatedAdd(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", withPrev("", web+","+dns))
	n.mustAdd("a", withPrev("", dns))
	if len(n.dp.ports) != 1 {
		t.Errorf("ports accumulate: %v", n.dp.ports)
	}
	n.mustAdd("a", withPrev("", ""))
	n.wantEmpty()
}

func TestDelWithoutRecord(t *testing.T) {
	tests := []struct {
		name string
		hurt func(t *testing.T, file string)
	}{
		{"lost", func(t *testing.T, f string) { must(t, os.Remove(f)) }},
		{"truncated", func(t *testing.T, f string) { must(t, os.Truncate(f, 10)) }},
		{"empty", func(t *testing.T, f string) { must(t, os.Truncate(f, 0)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.mustAdd("a", withPrev("", web))
			files, err := filepath.Glob(n.records.Path() + "/*.json")
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			tt.hurt(t, files[0])
			n.mustDel("a")
			n.wantEmpty()
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDelFromIntent(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", withPrev("", web))
	ref := refNamed("b")
	must(t, n.records.Begin(ref, "", Name, section{})) // killed before the first effect
	n.mustDel("b")
	if n.recordCount() != 1 || len(n.dp.ports) != 2 {
		t.Errorf("%d records, ports %v", n.recordCount(), n.dp.ports)
	}
}

func TestDelMapsGone(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", withPrev("", web))
	n.dp.fail["Disable"] = fmt.Errorf("%w: no map", loader.ErrNotLoaded)
	n.mustDel("a")
	if n.recordCount() != 0 {
		t.Error("the record stays")
	}
}

func TestDelKeepsRecordOnFailure(t *testing.T) {
	n := newNode(t)
	n.mustAdd("a", withPrev("", web))
	n.dp.fail["Unpublish"] = errors.New("boom")
	n.wantCode(n.del("a"), cnierr.CodeKernel)
	if len(n.dp.endpoints) != 0 {
		t.Error("stopped at the first error")
	}
	delete(n.dp.fail, "Unpublish")
	n.mustDel("a")
	n.wantEmpty()
}

func TestCheck(t *testing.T) {
	conf := withPrev("", web)
	check := func(n *node) error { return n.plugin.Check(t.Context(), n.args("a", conf)) }
	t.Run("not loaded", func(t *testing.T) {
		n := newNode(t)
		n.wantCode(check(n), cnierr.CodeCheck)
	})
	t.Run("nothing asked", func(t *testing.T) {
		n := newNode(t)
		must(t, n.plugin.Check(t.Context(), n.args("a", withPrev("", ""))))
	})
	t.Run("device gone", func(t *testing.T) {
		n := newNode(t)
		n.mustAdd("a", conf)
		a := n.args("a", conf)
		a.Netns = ""
		n.wantCode(n.plugin.Check(t.Context(), a), cnierr.CodeCheck)
	})
	t.Run("port gone", func(t *testing.T) {
		n := newNode(t)
		n.mustAdd("a", conf)
		must(t, check(n))
		clear(n.dp.ports)
		n.wantCode(check(n), cnierr.CodeCheck)
	})
	t.Run("endpoint gone", func(t *testing.T) {
		n := newNode(t)
		n.mustAdd("a", conf)
		clear(n.dp.endpoints)
		n.wantCode(check(n), cnierr.CodeCheck)
	})
}

func TestGC(t *testing.T) {
	n := newNode(t)
	port := func(i int) string { return fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"tcp"}`, i) }
	n.mustAdd("keep", withPrev("", port(1)))
	n.mustAdd("drop", withPrev("", port(2)))
	other := bytes.Replace(withPrev("", port(3)), []byte(`"net"`), []byte(`"other"`), 1)
	n.mustAdd("stranger", other)
	n.mustAdd("lost", withPrev("", port(4)))
	n.mustAdd("lostgone", withPrev("", port(5)))
	for _, id := range []string{"lost", "lostgone"} {
		must(t, n.records.Remove(refNamed(id), Name))
	}
	n.dp.endpoints[owner("lostgone")].gone = true

	gc := func(list string) error {
		return n.plugin.GC(t.Context(), n.args("", fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":%s}`, list)))
	}
	must(t, gc(`[{"containerID":"keep","ifname":"eth0"},{"containerID":"drop","ifname":"eth1"}]`))
	held := map[uint16]bool{}
	for k := range n.dp.ports {
		held[k.port] = true
	}
	if diff := cmp.Diff(map[uint16]bool{1: true, 3: true, 4: true}, held); diff != "" {
		t.Errorf("ports after GC (-want +got):\n%s", diff)
	}
	if n.recordCount() != 2 {
		t.Errorf("%d records", n.recordCount())
	}
	must(t, gc(`null`))
	if n.recordCount() != 1 {
		t.Errorf("%d records after an empty list", n.recordCount())
	}
	n.wantCode(n.plugin.GC(t.Context(), n.args("", []byte(`{"name":"net"}`))), cnierr.CodeConfig)
}

func TestGCNotLoaded(t *testing.T) {
	n := newNode(t)
	must(t, n.plugin.GC(t.Context(), n.args("", []byte(`{"name":"net","cni.dev/valid-attachments":[]}`))))
}

func TestEveryVersion(t *testing.T) {
	results := map[string]string{
		"0.1.0": `{"ip4":{"ip":"10.1.0.2/16"}}`, "0.2.0": `{"ip4":{"ip":"10.1.0.2/16"}}`,
		"0.3.0": `{"ips":[{"version":"4","address":"10.1.0.2/16"}]}`, "0.3.1": `{"ips":[{"version":"4","address":"10.1.0.2/16"}]}`,
		"0.4.0": `{"ips":[{"version":"4","address":"10.1.0.2/16"}]}`, "1.0.0": `{"ips":[{"address":"10.1.0.2/16"}]}`,
		"1.1.0": `{"ips":[{"address":"10.1.0.2/16"}]}`,
	}
	for _, v := range version.CNI() {
		t.Run(v, func(t *testing.T) {
			n := newNode(t)
			res := n.mustAdd("a", fmt.Appendf(nil, `{"cniVersion":%q,"name":"net","prevResult":%s,"runtimeConfig":{"portMappings":[%s]}}`, v, results[v], web))
			if res.Version() != v {
				t.Errorf("result of version %s", res.Version())
			}
			if len(n.dp.ports) != 1 {
				t.Errorf("ports: %v", n.dp.ports)
			}
		})
	}
}
