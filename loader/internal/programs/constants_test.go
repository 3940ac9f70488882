// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

func TestComplement(t *testing.T) {
	for local, want := range map[string]string{
		"32768\t60999": "61000-65535 1024-29999", // nor the NodePorts
		"32768 65535":  "1024-29999",
		"1024 60999":   "61000-65535",
		"1024 65535":   "1024-65535",
		"1024 60000":   "60001-65535",
		"1024 29999":   "32768-65535",
		"31000 31999":  "32768-65535 1024-29999",
		"40000 49999":  "50000-65535 1024-29999", // and not 32768-39999, which is smaller
		"1 500":        "32768-65535 1024-29999",
	} {
		got, err := complement(local)
		if err != nil {
			t.Fatal(err)
		}
		parts := make([]string, 0, 2)
		for _, r := range got {
			parts = append(parts, r.String())
		}
		if s := strings.Join(parts, " "); s != want {
			t.Errorf("complement of %q: %s, want %s", local, s, want)
		}
	}
	for _, bad := range []string{"", "1", "9 3", "a b"} {
		if _, err := complement(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestDrawnIsReadBack(t *testing.T) {
	dir := t.TempDir()
	want := randomConsts()
	want.netns, want.fibSrc, want.skNetns, want.netkit = 1<<63+5, true, true, true
	if err := os.Symlink(want.String(), filepath.Join(dir, pintree.LoadConstsName)); err != nil {
		t.Fatal(err)
	}
	if got, err := constsOf(dir); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
