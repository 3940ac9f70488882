// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"os"
	"path/filepath"
	"testing"
)

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
