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
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
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
	res := n.MustAdd("a", withPrev("", web+","+dns))
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
	if len(n.dp.Ports) != 3 { // web in two families, dns in one
		t.Errorf("ports: %v", n.dp.Ports)
	}
	ep := n.dp.Held[plugintest.Owner("a")]
	if ep == nil || ep.Features != loader.FeaturePublish || len(ep.Addrs) != 2 || ep.HostIfindex != 7 {
		t.Errorf("endpoint: %+v", ep)
	}
	if n.RecordCount() != 1 {
		t.Errorf("%d records", n.RecordCount())
	}
	n.MustDel("a")
	n.MustDel("a")
	n.wantEmpty()
}

func (n *node) wantEmpty() {
	n.T.Helper()
	if len(n.dp.Ports) != 0 || len(n.dp.Held) != 0 || n.RecordCount() != 0 {
		n.T.Errorf("left behind: ports %v, endpoints %v, %d records", n.dp.Ports, n.dp.Held, n.RecordCount())
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
			n.MustAdd("a", tt.stdin)
			if n.dp.Loads != 0 {
				t.Error("loaded the datapath")
			}
			n.wantEmpty()
			n.MustDel("a")
		})
	}
}

func TestAddNeedsPrevResult(t *testing.T) {
	n := newNode(t)
	_, err := n.Add("a", netconf("", web))
	n.WantCode(err, cnierr.CodeConfig)
	n.WantCode(n.Plugin.Check(t.Context(), n.Args("a", netconf("", web))), cnierr.CodeConfig)
	n.wantEmpty()
}

func TestAddBadInputHasNoEffect(t *testing.T) {
	n := newNode(t)
	_, err := n.Add("a", withPrev("", web+`,{"hostPort":70000,"containerPort":80,"protocol":"tcp"}`))
	n.WantCode(err, cnierr.CodeConfig)
	if n.dp.Loads != 0 {
		t.Error("loaded the datapath")
	}
	n.wantEmpty()
	// The runtime sends the same configuration to DEL.
	if err := n.Plugin.Del(t.Context(), n.Args("a", withPrev(`"backend":"nonsense"`, `{"hostPort":70000}`))); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// A tenant's mappings are counted before the first effect, as the tenant wrote them: two families count once, two protocols twice.
func TestHostPortLimit(t *testing.T) {
	mappings := func(n int) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"%s"}`, 20000+i/2, []string{"tcp", "udp"}[i%2]))
		}
		return strings.Join(out, ",")
	}
	n := newNode(t)
	_, err := n.Add("a", withPrev("", mappings(4097))) // the pod has two families
	n.WantCode(err, cnierr.CodeConfig)
	for _, word := range []string{"runtimeConfig.portMappings", "4097", "hostPortsPerAttachment", "4096"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %s", err, word)
		}
	}
	n.wantEmpty()
	if _, err := n.Add("a", withPrev("", mappings(4096))); err != nil {
		t.Error(err)
	}
}

// Equal lists count once, with and without duplicates. The lists of the mappings and that of the network count.
func TestAllowedSourcesLimit(t *testing.T) {
	mappings := func(n int, last string) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"tcp","allowedSources":["192.0.2.0/24","10.0.%d.0/24","10.1.%d.0/24","fd00:%x::/32"]}`, 20000+i, i, i, i))
		}
		return strings.Join(append(out, last), ",")
	}
	const same = `{"hostPort":8080,"containerPort":80,"protocol":"tcp","allowedSources":["10.0.0.0/24","10.1.0.0/24","192.0.2.0/24","fd00::/32","192.0.2.0/24"]}`
	n := newNode(t)
	_, err := n.Add("a", withPrev("", mappings(256, `{"hostPort":8080,"containerPort":80,"protocol":"tcp","allowedSources":["198.51.100.1"]}`)))
	n.WantCode(err, cnierr.CodeConfig)
	for _, word := range []string{"allowedSources", "1025", "allowedSourcesPerAttachment", "1024"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %s", err, word)
		}
	}
	n.wantEmpty()
	_, err = n.Add("a", withPrev("", mappings(256, same)))
	if err != nil {
		t.Error(err)
	}
}

func TestAddRollsBack(t *testing.T) {
	boom := errors.New("boom")
	for _, method := range []string{"Enable", "SetHostPorts"} {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			n.dp.Fail[method] = boom
			_, err := n.Add("a", withPrev("", web))
			n.WantCode(err, cnierr.CodeKernel)
			n.wantEmpty()
		})
	}
	t.Run("resolve", func(t *testing.T) {
		n := newNode(t)
		a := n.Args("a", withPrev("", web))
		a.Netns = ""
		_, err := n.Plugin.Add(t.Context(), a)
		n.WantCode(err, cnierr.CodeKernel)
		n.wantEmpty()
	})
}

func TestUnavailable(t *testing.T) {
	n := newNode(t)
	n.dp.OpenErr = fmt.Errorf("%w: kernel 4.19 has no bpf_redirect_neigh", loader.ErrUnavailable)
	_, err := n.Add("a", withPrev(`"backend":"auto"`, web))
	n.WantCode(err, cnierr.CodeNoDatapath)
	if !strings.Contains(cnierr.From(err).Details, "bpf_redirect_neigh") {
		t.Errorf("no reason in %v", err)
	}
	n.WantCode(n.Plugin.Status(t.Context(), n.Args("", netconf("", ""))), cnierr.CodeUnavailable)
	n.wantEmpty()
	n.MustDel("a")
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	if err := n.Plugin.Status(t.Context(), n.Args("", netconf("", ""))); err != nil {
		t.Error(err)
	}
	n.WantCode(n.Plugin.Status(t.Context(), n.Args("", netconf(`"backend":"x"`, ""))), cnierr.CodeConfig)
}

func TestLastAddWins(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", withPrev("", web))
	n.MustAdd("b", withPrev("", web))
	for _, p := range n.dp.Ports {
		if p.Owner != plugintest.Owner("b") {
			t.Errorf("%v still belongs to the first", p)
		}
	}
	n.WantCode(n.Plugin.Check(t.Context(), n.Args("a", withPrev("", web))), cnierr.CodeCheck)
	n.MustDel("a")
	if len(n.dp.Ports) != 2 {
		t.Errorf("DEL of the first took the second's ports: %v", n.dp.Ports)
	}
	if err := n.Plugin.Check(t.Context(), n.Args("b", withPrev("", web))); err != nil {
		t.Errorf("CHECK of the second: %v", err)
	}
	n.MustDel("b")
	n.wantEmpty()
}

func TestRepeatedAdd(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", withPrev("", web+","+dns))
	n.MustAdd("a", withPrev("", dns))
	if len(n.dp.Ports) != 1 {
		t.Errorf("ports accumulate: %v", n.dp.Ports)
	}
	n.MustAdd("a", withPrev("", ""))
	n.wantEmpty()
}

// A repeated ADD that fails takes out the ports of the first one too: its record goes.
func TestRepeatedAddFails(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", withPrev("", web))
	n.dp.Fail["SetHostPorts"] = errors.New("boom")
	_, err := n.Add("a", withPrev("", dns))
	n.WantCode(err, cnierr.CodeKernel)
	n.wantEmpty()
}

// While a repeated ADD runs, the record has the ports of the first one too: a DEL after a kill finds them.
func TestRecordWithEarlierPorts(t *testing.T) {
	key := func(port uint16, backend string) recordedPort {
		return recordedPort{netfilter.Mapping{Key: hostport.Key{Proto: 6, Port: port}}, backend}
	}
	before := recordedPorts{keys: []recordedPort{key(1, "ebpf"), key(2, "ebpf"), key(3, "iptables")}}
	got := section{Ports: []recordedPort{key(2, "ebpf"), key(3, "ebpf")}}.with(before)
	want := section{Ports: []recordedPort{key(1, "ebpf"), key(2, "ebpf"), key(3, "ebpf")}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(recordedPort{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The first ADD of an attachment, and one whose earlier ADD the record has, need not read the whole map.
func TestKeysOfEarlierAdd(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before recordedPorts
		known  bool
		keys   int
	}{
		{"no record", recordedPorts{unknown: true, missing: true}, true, 0},
		{"the record of another plugin", recordedPorts{none: true}, true, 0},
		{"a record", recordedPorts{keys: []recordedPort{{netfilter.Mapping{Key: hostport.Key{Port: 1}}, "ebpf"}, {netfilter.Mapping{Key: hostport.Key{Port: 2}}, "nftables"}}}, true, 1},
		{"a record that cannot be read", recordedPorts{unknown: true}, false, 0},
	} {
		if got := tt.before.keysFor(ebpf{}); (got != nil) != tt.known || len(got) != tt.keys {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestDelWithoutRecord(t *testing.T) {
	tests := []struct {
		name string
		hurt func(t *testing.T, file string)
	}{
		{"lost", func(t *testing.T, f string) { plugintest.Must(t, os.Remove(f)) }},
		{"truncated", func(t *testing.T, f string) { plugintest.Must(t, os.Truncate(f, 10)) }},
		{"empty", func(t *testing.T, f string) { plugintest.Must(t, os.Truncate(f, 0)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.MustAdd("a", withPrev("", web))
			files, err := filepath.Glob(n.Records.Path() + "/*.json")
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			tt.hurt(t, files[0])
			n.MustDel("a")
			n.wantEmpty()
		})
	}
}

func TestDelFromIntent(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", withPrev("", web))
	ref := plugintest.Ref("b")
	plugintest.Must(t, n.Records.Begin(ref, "", Name, section{})) // killed before the first effect
	n.MustDel("b")
	if n.RecordCount() != 1 || len(n.dp.Ports) != 2 {
		t.Errorf("%d records, ports %v", n.RecordCount(), n.dp.Ports)
	}
}

func TestDelMapsGone(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", withPrev("", web))
	n.dp.Fail["Disable"] = fmt.Errorf("%w: no map", loader.ErrNotLoaded)
	n.MustDel("a")
	if n.RecordCount() != 0 {
		t.Error("the record stays")
	}
}

func TestDelKeepsRecordOnFailure(t *testing.T) {
	n := newNode(t)
	n.MustAdd("a", withPrev("", web))
	n.dp.Fail["RemoveHostPorts"] = errors.New("boom")
	n.WantCode(n.Del("a"), cnierr.CodeKernel)
	if len(n.dp.Held) != 0 {
		t.Error("stopped at the first error")
	}
	delete(n.dp.Fail, "RemoveHostPorts")
	n.MustDel("a")
	n.wantEmpty()
}

func TestCheck(t *testing.T) {
	conf := withPrev("", web)
	check := func(n *node) error { return n.Plugin.Check(t.Context(), n.Args("a", conf)) }
	t.Run("not loaded", func(t *testing.T) {
		n := newNode(t)
		n.WantCode(check(n), cnierr.CodeCheck)
	})
	t.Run("nothing asked", func(t *testing.T) {
		n := newNode(t)
		plugintest.Must(t, n.Plugin.Check(t.Context(), n.Args("a", withPrev("", ""))))
	})
	t.Run("device gone", func(t *testing.T) {
		n := newNode(t)
		n.MustAdd("a", conf)
		a := n.Args("a", conf)
		a.Netns = ""
		n.WantCode(n.Plugin.Check(t.Context(), a), cnierr.CodeCheck)
	})
	t.Run("port gone", func(t *testing.T) {
		n := newNode(t)
		n.MustAdd("a", conf)
		plugintest.Must(t, check(n))
		n.dp.Ports = nil
		n.WantCode(check(n), cnierr.CodeCheck)
	})
	t.Run("endpoint gone", func(t *testing.T) {
		n := newNode(t)
		n.MustAdd("a", conf)
		clear(n.dp.Held)
		n.WantCode(check(n), cnierr.CodeCheck)
	})
}

func TestGC(t *testing.T) {
	n := newNode(t)
	port := func(i int) string { return fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"tcp"}`, i) }
	n.MustAdd("keep", withPrev("", port(1)))
	n.MustAdd("drop", withPrev("", port(2)))
	other := bytes.Replace(withPrev("", port(3)), []byte(`"net"`), []byte(`"other"`), 1)
	n.MustAdd("stranger", other)
	n.MustAdd("lost", withPrev("", port(4)))
	n.MustAdd("lostgone", withPrev("", port(5)))
	for _, id := range []string{"lost", "lostgone"} {
		plugintest.Must(t, n.Records.Remove(plugintest.Ref(id), Name))
	}
	n.dp.Held[plugintest.Owner("lostgone")].Gone = true

	gc := func(list string) error {
		return n.Plugin.GC(t.Context(), n.Args("", fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":%s}`, list)))
	}
	plugintest.Must(t, gc(`[{"containerID":"keep","ifname":"eth0"},{"containerID":"drop","ifname":"eth1"}]`))
	held := map[uint16]bool{}
	for _, k := range n.dp.Ports {
		held[k.Port] = true
	}
	if diff := cmp.Diff(map[uint16]bool{1: true, 3: true, 4: true}, held); diff != "" {
		t.Errorf("ports after GC (-want +got):\n%s", diff)
	}
	if n.RecordCount() != 2 {
		t.Errorf("%d records", n.RecordCount())
	}
	plugintest.Must(t, gc(`null`))
	if n.RecordCount() != 1 {
		t.Errorf("%d records after an empty list", n.RecordCount())
	}
	n.WantCode(n.Plugin.GC(t.Context(), n.Args("", []byte(`{"name":"net"}`))), cnierr.CodeConfig)
}

func TestGCNotLoaded(t *testing.T) {
	n := newNode(t)
	plugintest.Must(t, n.Plugin.GC(t.Context(), n.Args("", []byte(`{"name":"net","cni.dev/valid-attachments":[]}`))))
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
			res := n.MustAdd("a", fmt.Appendf(nil, `{"cniVersion":%q,"name":"net","prevResult":%s,"runtimeConfig":{"portMappings":[%s]}}`, v, results[v], web))
			if res.Version() != v {
				t.Errorf("result of version %s", res.Version())
			}
			if len(n.dp.Ports) != 1 {
				t.Errorf("ports: %v", n.dp.Ports)
			}
		})
	}
}
