// SPDX-License-Identifier: Apache-2.0

package behaviour

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/install"
)

// lay makes a directory of the programs whose names are given, as by who packages by hand.
func lay(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := layFile(programs.Path(name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Without the helper nothing can be loaded: the first ADD says what is missing, and DEL takes it back. Once something is
// loaded, no plugin needs it.
func TestPrivilegedWithoutHelper(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := lay(t, "bridge", "portmap", "firewall", "bandwidth", "host-local")
	rt := w.runtimeFrom(net0(), dir)
	early := w.newPod(rt, "early", tcp(8080, 80))
	if err := early.tryAdd(); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, install.Helper)) {
		t.Fatalf("ADD without %s: %v", install.Helper, err)
	}
	early.mustDel()
	if err := layFile(programs.Path(install.Helper), filepath.Join(dir, install.Helper)); err != nil {
		t.Fatal(err)
	}
	w.add(rt, "web", tcp(8080, 80))
	if err := os.Remove(filepath.Join(dir, install.Helper)); err != nil {
		t.Fatal(err)
	}
	app := w.add(rt, "app", tcp(8081, 80))
	serve(t, app, "app", ":80")
	for _, fam := range families() {
		if got := ask(t, w.Client(), "tcp"+fam.suffix, at(fam.node(w.Client()), 8081)); got.name != "app" {
			t.Errorf("IPv%s: the client reached %q", fam.suffix, got.name)
		}
	}
}
