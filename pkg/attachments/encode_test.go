// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var (
	pieces = []string{
		"a", "bridge", "0", " ", "/", "=", "<", ">", "&", `"`, `\`, "'", "\x00", "\n", "\t", "\b", "\x1f", "\x7f", "é", "\u2027", "\u2028",
		"\u2029", "\u202a", "\ufffd", "😀", "\xff", "\xe2", "\xe2\x80", "\xed\xa0\x80",
	}
	raws = []string{
		"", `{}`, `null`, `7`, `"x"`, `{"bridge":"cni0","index":3,"list":["a",1.5e-3,null]}`, "{ \"a\" :\t1 }", "\r\n[1, 2]\n", `"a b"`, `"\\\"\u0041"`,
		`{"<a>":"&"}`, `"\u003c"`, "\"\u2028\u2029\"", `"é"`, "\"\xff\xe2\x80\"", "\"\x7f\"", `{"a":1,"a":2}`,
		`{`, `{}}`, `nul`, `1 2`, `01`, ` `, "\"\n\"", `'x'`, `<`, "\u2028", "\ufeff{}",
	}
	times = []time.Time{
		{}, time.Unix(0, 0).UTC(), time.Date(2026, 3, 4, 5, 6, 7, 80, time.UTC), time.Date(2026, 3, 4, 5, 6, 7, 800_000_000, time.UTC),
		time.Date(2026, 3, 4, 5, 6, 7, 0, time.FixedZone("", -12600)), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", 25*3600)),
	}
)

func one[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

func text(r *rand.Rand) (s string) {
	for range r.IntN(5) {
		s += one(r, pieces)
	}
	return s
}

func randomRecord(r *rand.Rand) *Record {
	rec := &Record{
		Version: one(r, []int{0, 1, -7, 1 << 40}), ID: ID{text(r), text(r), text(r)}, NetNS: text(r), Created: one(r, times[:6]), Corrupt: r.IntN(2) == 0,
	}
	if r.IntN(20) == 0 {
		rec.Created = one(r, times)
	}
	n := r.IntN(5)
	if n == 0 {
		return rec
	}
	rec.Plugins = map[string]Section{}
	for range n - 1 {
		s := Section{State: text(r)}
		if r.IntN(4) > 0 {
			s.Data = json.RawMessage(one(r, raws))
		}
		rec.Plugins[text(r)] = s
	}
	return rec
}

// sameEncoding holds encode against encoding/json, and reports whether the record can be encoded.
func sameEncoding(t *testing.T, rec *Record) bool {
	t.Helper()
	got, err := encode(rec)
	want, wantErr := json.Marshal(rec)
	if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
		t.Fatalf("%+v\n%s, %v\nencoding/json makes of it\n%s, %v", rec, got, err, want, wantErr)
	}
	return err == nil
}

func TestEncode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	good, bad := 0, 0
	for range 20_000 {
		if sameEncoding(t, randomRecord(r)) {
			good++
		} else {
			bad++
		}
	}
	if good < 1000 || bad < 1000 {
		t.Errorf("%d records could be encoded and %d could not: no fair test", good, bad)
	}
	for _, at := range times {
		sameEncoding(t, &Record{Created: at})
	}
	for _, raw := range raws {
		sameEncoding(t, &Record{Plugins: map[string]Section{"x": {Data: json.RawMessage(raw)}}})
	}
	for _, s := range pieces {
		sameEncoding(t, &Record{ID: ID{s, "a" + s, s + s}, NetNS: s + "a"})
	}
}

var documents = []string{
	``, ` `, `{`, `{}x`, `null`, `[]`, `7`, `{"version":1,"network":"dbnet"`, `{"version":1}`,
	`{"version":1,"network":"n","containerID":"c","ifname":"e","netns":"/run/netns/x","created":"2026-03-04T05:06:07.00000008Z","plugins":{"bridge":{"state":"done","data":{"a":[1, 2]}},"Bridge":{"state":"intent"}}}`,
	`{"VERSION":9,"NetWork":"n","containerid":"c","IFNAME":"e","NETN\u0053":"x","Created":null,"new":{"version":2},"pluginſ":{"a":{"STATE":"x","Data":null}}}`,
	`{"version":1.0}`, `{"version":"1"}`, `{"version":99999999999999999999}`, `{"version":null,"network":null,"created":null,"plugins":null}`, `{"network":7}`,
	`{"created":""}`, `{"created":7}`, `{"created":{}}`, `{"created":"2026-03-04T05:06:07+05:30"}`, `{"created":"2026-03-04T05:06:07\u005a"}`, `{"created":"2026-03-04"}`,
	`{"plugins":[]}`, `{"plugins":{}}`, `{"plugins":{"a":null,"b":{}}}`, `{"plugins":{"a":7}}`, `{"plugins":{"a":{"state":7}}}`, `{"plugins":{"a":{"data":"<\u003c \u2028"}}}`,
	`{"plugins":{"a":{"state":"x"}},"plugins":{"b":{"data":1}}}`, `{"plugins":{"a":{"state":"x","data":1},"a":{"data":2,"data":3}}}`, `{"plugins":{"a":{}},"plugins":null}`,
	"{\"network\":\"\xff\",\"plugins\":{\"\xff\":{\"data\":\"\xff\"},\"\\ud800\":{}}}", "\ufeff{}", `{"Ref":{"network":"n"},"Corrupt":true,"-":true}`,
}

// Whatever record is read, encoding/json writes the same.
func FuzzRecord(f *testing.F) {
	for _, d := range documents {
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		var rec Record
		if json.Unmarshal([]byte(doc), &rec) == nil { // any other is Corrupt, whatever could be read
			sameEncoding(t, &rec)
		}
	})
}

// What a process has written itself is only taken for the record while it is what the file holds.
func TestUpdateSeesOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(t *testing.T, d *Dir, path string)
		want      []string
	}{
		"nothing":      {func(*testing.T, *Dir, string) {}, []string{"bridge"}},
		"another one":  {func(t *testing.T, d *Dir, _ string) { mustBegin(t, Open(d.Path()), ref, "portmap", nil) }, []string{"bridge", "portmap"}},
		"its own":      {func(t *testing.T, d *Dir, _ string) { mustBegin(t, d, ref, "portmap", nil) }, []string{"bridge", "portmap"}},
		"other record": {func(t *testing.T, d *Dir, _ string) { mustBegin(t, d, ID{"n", "c", "i"}, "portmap", nil) }, []string{"bridge"}},
		"removed":      {func(t *testing.T, _ *Dir, path string) { try(t, os.Remove(path)) }, []string{"bridge"}},
		"broken":       {func(t *testing.T, _ *Dir, path string) { try(t, os.WriteFile(path, []byte("{"), 0o600)) }, []string{"bridge"}},
		"caller's": {func(t *testing.T, d *Dir, _ string) {
			rec, err := d.Load(ref)
			try(t, err)
			rec.Plugins["mine"] = Section{}
		}, []string{"bridge"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Open(t.TempDir())
			mustBegin(t, d, ref, "bridge", nil)
			tt.meanwhile(t, d, filepath.Join(d.Path(), fileName(ref)))
			try(t, d.Complete(ref, "bridge", 7))
			rec, err := d.Load(ref)
			try(t, err)
			if s := rec.Plugins["bridge"]; rec.Corrupt || len(rec.Plugins) != len(tt.want) || s.State != StateDone || string(s.Data) != "7" {
				t.Errorf("%+v, want the sections %v", rec, tt.want)
			}
			for _, p := range tt.want {
				if ok, _ := rec.Section(p, nil); !ok {
					t.Errorf("no section of %s", p)
				}
			}
		})
	}
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
