// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type data struct {
	Bridge string `json:"bridge"`
	Index  int    `json:"index"`
}

var ref = ID{Network: "dbnet", ContainerID: "c1", IfName: "eth0"}

func mustBegin(t *testing.T, d *Dir, r ID, plugin string, v any) {
	t.Helper()
	if err := d.Begin(r, "/run/netns/x", plugin, v); err != nil {
		t.Fatal(err)
	}
}

func files(t *testing.T, d *Dir) []string {
	t.Helper()
	es, err := os.ReadDir(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range es {
		if e.Name() != lockName {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestOwner(t *testing.T) {
	// The value is part of the contract with the maps: printf 'dbnet\0c1\0eth0' | sha256sum
	if got, want := ref.Owner(), uint64(0xcf30717f23070dbc); got != want {
		t.Errorf("Owner = %#x, want %#x", got, want)
	}
	if (ID{"ab", "c", "d"}).Owner() == (ID{"a", "bc", "d"}).Owner() {
		t.Error("the parts are not separated")
	}
}

func TestLife(t *testing.T) {
	d := Open(filepath.Join(t.TempDir(), "deep", "dir"))
	if _, err := d.Load(ref); !errors.Is(err, ErrNotExist) {
		t.Fatalf("Load of an empty store: %v", err)
	}
	if err := d.Remove(ref, "bridge"); err != nil {
		t.Fatalf("Remove from a missing directory: %v", err)
	}
	mustBegin(t, d, ref, "bridge", data{"cni0", 0})
	if err := d.Complete(ref, "bridge", data{"cni0", 7}); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, d, ref, "portmap", nil)

	rec, err := d.Load(ref)
	if err != nil {
		t.Fatal(err)
	}
	var got data
	if ok, err := rec.Section("bridge", &got); !ok || err != nil {
		t.Fatalf("Section = %v, %v", ok, err)
	}
	if diff := cmp.Diff(data{"cni0", 7}, got); diff != "" {
		t.Errorf("section (-want +got):\n%s", diff)
	}
	if rec.Plugins["bridge"].State != StateDone || rec.Plugins["portmap"].State != StateIntent {
		t.Errorf("states: %+v", rec.Plugins)
	}
	if rec.NetNS != "/run/netns/x" || rec.ID != ref || rec.Version != Version || rec.Created.IsZero() {
		t.Errorf("record: %+v", rec)
	}
	for _, p := range []string{"bridge", "bridge", "portmap", "portmap"} {
		if err := d.Remove(ref, p); err != nil {
			t.Fatal(err)
		}
	}
	if left := files(t, d); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBeginReplaces(t *testing.T) {
	d := Open(t.TempDir())
	mustBegin(t, d, ref, "bridge", data{"a", 1})
	if err := d.Complete(ref, "bridge", data{"a", 1}); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, d, ref, "bridge", data{"b", 2})
	rec, err := d.Load(ref)
	if err != nil {
		t.Fatal(err)
	}
	if s := rec.Plugins["bridge"]; s.State != StateIntent || string(s.Data) != `{"bridge":"b","index":2}` {
		t.Errorf("section %+v", s)
	}
}

func TestSectionAbsentOrOdd(t *testing.T) {
	var none *Record
	if ok, err := none.Section("x", nil); ok || err != nil {
		t.Errorf("nil record: %v %v", ok, err)
	}
	rec := &Record{Plugins: map[string]Section{"x": {Data: json.RawMessage(`"text"`)}}}
	var into data
	if ok, err := rec.Section("x", &into); !ok || err == nil {
		t.Errorf("odd data: %v %v", ok, err)
	}
}

func TestCorrupt(t *testing.T) {
	for _, content := range []string{"", "{", `{"version":1,"network":"dbnet"`, "null", "[]", `{"version":1}`,
		`{"version":1,"network":"other","containerID":"c1","ifname":"eth0"}`} {
		t.Run(content, func(t *testing.T) {
			d := Open(t.TempDir())
			mustBegin(t, d, ref, "bridge", nil)
			path := filepath.Join(d.Path(), fileName(ref))
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			rec, err := d.Load(ref)
			if err != nil || !rec.Corrupt || rec.ID != ref {
				t.Fatalf("Load = %+v, %v; want a corrupt record of %s", rec, err, ref)
			}
			if recs, err := d.List(ref.Network); err != nil || len(recs) != 1 || !recs[0].Corrupt || recs[0].ID != ref {
				t.Fatalf("List = %v, %v; want a corrupt record of %s", recs, err, ref)
			}
			if recs, err := d.List("other"); err != nil || len(recs) != 0 {
				t.Fatalf("List of another network = %v, %v", recs, err)
			}
			if err := d.Remove(ref, "anything"); err != nil {
				t.Fatal(err)
			}
			if left := files(t, d); len(left) != 0 {
				t.Fatalf("left behind: %v", left)
			}
			mustBegin(t, d, ref, "bridge", nil)
		})
	}
}

func TestFutureVersionIsRead(t *testing.T) {
	d := Open(t.TempDir())
	raw := `{"version":9,"network":"dbnet","containerID":"c1","ifname":"eth0","new":1,"plugins":{"bridge":{"state":"done","data":{"index":3}}}}`
	if err := os.WriteFile(filepath.Join(d.Path(), fileName(ref)), []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	rec, err := d.Load(ref)
	if err != nil || rec.Corrupt {
		t.Fatalf("%+v, %v", rec, err)
	}
	var got data
	if _, err := rec.Section("bridge", &got); err != nil || got.Index != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestList(t *testing.T) {
	d := Open(filepath.Join(t.TempDir(), "x"))
	if recs, err := d.List(""); err != nil || len(recs) != 0 {
		t.Fatalf("missing directory: %v, %v", recs, err)
	}
	for _, r := range []ID{{"n1", "a", "eth0"}, {"n1", "b", "eth0"}, {"n2", "a", "eth1"}} {
		mustBegin(t, d, r, "bridge", nil)
	}
	for _, junk := range []string{tempName, "readme.txt"} {
		if err := os.WriteFile(filepath.Join(d.Path(), junk), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recs, err := d.List("n1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range recs {
		got = append(got, r.ID.String())
	}
	if diff := cmp.Diff([]string{"n1/a/eth0", "n1/b/eth0"}, got); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(d.Path(), tempName)); err == nil {
		t.Error("List left a killed writer's file")
	}
}

func TestFileNames(t *testing.T) {
	long := strings.Repeat("x", 300)
	tests := []struct {
		ref  ID
		want string // empty: only the general properties
	}{
		{ref, "dbnet=c1=eth0.json"},
		{ID{"n", "../../etc/passwd", ".."}, "n=%2E.%2F..%2Fetc%2Fpasswd=%2E..json"},
		{ID{".", "a=b", "e th\x00"}, "%2E=a%3Db=e%20th%00.json"},
		{ID{"ne.t_1-x", "c", "ü"}, "ne.t_1-x=c=%C3%BC.json"},
		{ID{long, long, "eth0"}, ""},
	}
	for _, tt := range tests {
		got := fileName(tt.ref)
		if tt.want != "" && got != tt.want {
			t.Errorf("fileName(%q) = %q, want %q", tt.ref, got, tt.want)
		}
		if filepath.Base(got) != got || len(got) > 255 || !isRecordName(got) {
			t.Errorf("fileName(%q) = %q is not a safe name", tt.ref, got)
		}
		if back, ok := refFromName(got); ok && back != tt.ref {
			t.Errorf("refFromName(%q) = %q, want %q", got, back, tt.ref)
		}
	}
	if fileName(ID{long, long + "a", "e"}) == fileName(ID{long, long + "b", "e"}) {
		t.Error("two long attachments share a file")
	}
}

func FuzzFileName(f *testing.F) {
	f.Add("net", "id", "eth0")
	f.Add("..", "/", "=")
	f.Fuzz(func(t *testing.T, n, c, i string) {
		r := ID{n, c, i}
		name := fileName(r)
		if filepath.Base(name) != name || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
			t.Fatalf("%q gives %q", r, name)
		}
		if back, ok := refFromName(name); ok && back != r {
			t.Fatalf("%q gives %q gives %q", r, name, back)
		}
	})
}

func TestParallelWriters(t *testing.T) {
	d := Open(t.TempDir())
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := ID{"n", fmt.Sprintf("c%d", i/2), "eth0"} // two plugins on each attachment
			p := fmt.Sprintf("p%d", i%2)
			if err := d.Begin(r, "", p, i); err != nil {
				t.Error(err)
			}
			if err := d.Complete(r, p, i); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	recs, err := d.List("n")
	if err != nil || len(recs) != 8 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	for _, r := range recs {
		if len(r.Plugins) != 2 {
			t.Errorf("%s lost a section: %v", r.ID, r.Plugins)
		}
	}
}

func BenchmarkBeginComplete(b *testing.B) {
	d := Open(b.TempDir())
	for b.Loop() {
		if err := d.Begin(ref, "/run/netns/x", "bridge", data{"cni0", 0}); err != nil {
			b.Fatal(err)
		}
		if err := d.Complete(ref, "bridge", data{"cni0", 1}); err != nil {
			b.Fatal(err)
		}
	}
}

// The records of a container are found by their names, also where those are cut, and no other container's.
func TestListOf(t *testing.T) {
	t.Parallel()
	d := Open(filepath.Join(t.TempDir(), "records"))
	if recs, err := d.ListOf("c1"); err != nil || len(recs) != 0 {
		t.Errorf("no directory: %v %v", recs, err)
	}
	long := strings.Repeat("c", 300)
	for _, r := range []ID{
		{"net", "c1", "eth0"}, {"net2", "c1", "eth1"}, {"net", "c12", "eth0"}, {"c1", "other", "eth0"}, {"net", "pod/1", "eth0"},
		{"net", long + "1", "eth0"}, {"net", long + "2", "eth0"},
	} {
		mustBegin(t, d, r, "bridge", nil)
	}
	for container, want := range map[string]int{"c1": 2, "c12": 1, "other": 1, "pod/1": 1, long + "1": 1, "c": 0, "net": 0} {
		recs, err := d.ListOf(container)
		if err != nil || len(recs) != want {
			t.Errorf("%s: %d records, want %d: %v", container, len(recs), want, err)
		}
		for _, r := range recs {
			if r.ContainerID != container {
				t.Errorf("%s: the record of %s", container, r.ID)
			}
		}
	}
}
