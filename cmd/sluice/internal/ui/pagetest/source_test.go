// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/ui"
)

// object is one of JSON.
type object = map[string]any

func readJSON(t *testing.T, path string) (v object) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

// looks are so many looks at a node that does the same each time. The last one stays.
const looks = 31

// recorded is a source with fixed looks: node.json, which cmd/sluice's TestUILook writes, with counters that go on.
type recorded struct {
	node, connections, doctor object

	mu sync.Mutex
	n  int
}

func newRecorded(t *testing.T) *recorded {
	t.Helper()
	return &recorded{
		node: readJSON(t, "testdata/node.json"), connections: readJSON(t, "testdata/connections.json"),
		doctor: readJSON(t, "../../../testdata/doctor.json"),
	}
}

// look is one of them, as JSON.
type look struct {
	node        json.RawMessage
	connections object
}

func (l look) Node() any { return l.node }

func (l look) Connections(url.Values) (any, error) { return l.connections, nil }

func (r *recorded) Doctor(context.Context) (any, error) { return r.doctor, nil }

func (r *recorded) Look(context.Context) (ui.Look, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n++; r.n <= looks {
		r.advance()
	}
	b, err := json.Marshal(r.node)
	return look{b, r.connections}, err
}

// advance is what two seconds do.
func (r *recorded) advance() {
	wave := func(i int) float64 {
		return 1 + 0.5*math.Sin(float64(r.n)/4+float64(i)) + 0.2*math.Sin(float64(r.n*(i+3)))
	}
	r.node["taken"] = time.Date(2026, 3, 4, 5, 6, 2*r.n, 0, time.UTC)
	for i, e := range list(r.node, "endpoints") {
		grow(e, "rx_bytes", 40e6*wave(i)/float64((i+1)*(i+1)))
		grow(e, "tx_bytes", 6e6*wave(i+1)/float64(i+1))
		for _, fast := range []string{"", "_fast"} {
			grow(e, "rx"+fast+"_packets", 30e3*wave(i)/float64(i+1))
			grow(e, "tx"+fast+"_packets", 9e3*wave(i+1)/float64(i+1))
		}
	}
	if r.n%7 == 0 {
		for _, d := range list(r.node["status"], "drops") {
			grow(d, "packets", 2)
		}
	}
	if c, ok := r.node["connections"].(object); ok {
		c["total"] = float64(60 - (looks-min(r.n, looks))%7)
	}
}

func grow(o object, key string, by float64) {
	if v, ok := o[key].(float64); ok {
		o[key] = math.Round(v + by)
	}
}

func list(of any, key string) (out []object) {
	o, _ := of.(object)
	all, _ := o[key].([]any)
	for _, v := range all {
		if e, ok := v.(object); ok {
			out = append(out, e)
		}
	}
	return out
}

// crowd makes pods of the first endpoint until there are so many, and each of them talks with some others.
func (r *recorded) crowd(t *testing.T, pods int) {
	t.Helper()
	text, err := json.Marshal(list(r.node, "endpoints")[0])
	if err != nil {
		t.Fatal(err)
	}
	var endpoints, edges []any
	id := func(i int) string { return fmt.Sprintf("%016x", 0xabcdef+i*7919) }
	for i := range pods {
		var e object
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		e["owner"] = object{"id": id(i), "network": "web", "container_id": fmt.Sprintf("%08x%016x", uint32(i+3)*2654435761, i), "ifname": "eth0"}
		e["device"], e["ifindex"], e["addresses"] = fmt.Sprintf("veth%d", i), i+10, []string{fmt.Sprintf("10.1.%d.%d/16", i/250, i%250+2)}
		endpoints = append(endpoints, e)
		for k := range 3 {
			edges = append(edges, object{"from": object{"kind": "pod", "owner": id(i)}, "to": object{"kind": "pod", "owner": id((i*k + 11*k + 1) % pods)}, "connections": k + 1, "bytes": 1_000_000 / (i + k + 1)})
		}
		edges = append(edges, object{"from": object{"kind": "outside", "address": fmt.Sprintf("198.51.100.%d", i%12)}, "via": fmt.Sprintf("tcp %d", 8000+i), "to": object{"kind": "pod", "owner": id(i)}, "connections": 1, "bytes": 500_000 / (i + 1)})
	}
	r.node["endpoints"] = endpoints
	r.node["talk"] = object{"edges": edges, "left_out": 17}
}

// hostile gives a pod names that would be markup, if the page took them for that.
func (r *recorded) hostile() {
	bad := `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	for _, e := range list(r.node, "endpoints") {
		e["owner"] = object{"id": "1234567890abcdef", "network": bad, "container_id": bad, "ifname": bad, "namespace": bad, "pod": bad}
		e["device"], e["features"] = bad, []string{bad}
	}
	for _, f := range list(r.connections, "rows") {
		f["owner"], f["pod"], f["kind"] = object{"id": bad, "network": bad, "container_id": bad}, bad, bad
	}
	for _, d := range list(r.node, "drops") {
		d["reason"], d["text"], d["advice"] = bad, bad, bad
	}
	for _, f := range list(r.doctor, "findings") {
		f["check"], f["text"], f["do"] = bad, bad, bad
	}
	for _, p := range list(r.node, "hostports") {
		p["conditions"] = bad
	}
	r.node["host"], r.node["failed"] = bad, []string{bad}
}
