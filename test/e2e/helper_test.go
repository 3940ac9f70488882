// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
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

// The helper matches the allowlist of the tuning plugin.
func TestPrivilegedAllowlist(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.onNode(func() error {
		if err := os.MkdirAll("/etc/cni/tuning", 0o755); err != nil {
			return err
		}
		return os.WriteFile("/etc/cni/tuning/allowlist.conf", []byte("^net\\.core\\.\n"), 0o644)
	})
	for key, want := range map[string]string{"net.core.somaxconn": "", "net.ipv4.ip_forward": "is not on the node's allowlist"} {
		conf := `{"cniVersion":"1.1.0","name":"n","type":"tuning","sysctl":{"` + key + `":"1"}}`
		var said string
		w.onNode(func() (err error) {
			said, err = netlab.Run("sh", "-c", "echo '"+conf+"' | CNI_COMMAND=STATUS CNI_PATH="+programs.Dir+" "+programs.Path("tuning")+" || true")
			return err
		})
		if want == "" && said != "" || !strings.Contains(said, want) {
			t.Errorf("%s: %q, want %q", key, said, want)
		}
	}
}
