// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// installPrograms makes a directory of the programs whose names are given, as by who packages by hand.
func installPrograms(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := e2etest.InstallFile(e2etest.Programs.Path(name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// mustReach has the client ask the pod by its hostPort 8081, in both families.
func mustReach(t *testing.T, w *e2etest.World, app *e2etest.Pod) {
	t.Helper()
	e2etest.Serve(t, app, "app", ":80")
	for _, fam := range e2etest.Families() {
		if got := e2etest.Ask(t, w.Client(), "tcp"+fam.Suffix, e2etest.At(fam.Node(w.Client()), 8081)); got.Server != "app" {
			t.Errorf("IPv%s: the client reached %q", fam.Suffix, got.Server)
		}
	}
}

// Without the helper nothing can be loaded: the first ADD says what is missing, and DEL takes it back. Once something is
// loaded, no plugin needs it.
func TestPrivilegedWithoutHelper(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	dir := installPrograms(t, "bridge", "portmap", "firewall", "bandwidth", "host-local")
	rt := w.RuntimeFrom(e2etest.Net0(), dir)
	early := w.NewPod(rt, "early", e2etest.TCP(8080, 80))
	if err := early.TryAdd(); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, install.Helper)) {
		t.Fatalf("ADD without %s: %v", install.Helper, err)
	}
	early.MustDel()
	if err := e2etest.InstallFile(e2etest.Programs.Path(install.Helper), filepath.Join(dir, install.Helper)); err != nil {
		t.Fatal(err)
	}
	w.AddPod(rt, "web", e2etest.TCP(8080, 80))
	if err := os.Remove(filepath.Join(dir, install.Helper)); err != nil {
		t.Fatal(err)
	}
	app := w.AddPod(rt, "app", e2etest.TCP(8081, 80))
	mustReach(t, w, app)
}

// While an upgrade replaces the files one after the other, a plugin that has started meets the helper of the next release. It begins
// again, and the ADD succeeds once its own file is the next release's too. If that does not happen, the error says what is wrong.
func TestPrivilegedUpgradeDuringAdd(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	plugins := []string{"bridge", "portmap", "firewall", "bandwidth", "host-local"}
	dir, old := installPrograms(t, install.Helper), t.TempDir()
	if err := testbin.BuildOtherRelease(old, install.Multicall); err != nil {
		t.Fatal(err)
	}
	lay := func(from string) (errs error) {
		for _, name := range plugins {
			errs = errors.Join(errs, e2etest.InstallFile(from, filepath.Join(dir, name)))
		}
		return errs
	}
	if err := lay(filepath.Join(old, install.Multicall)); err != nil {
		t.Fatal(err)
	}
	rt := w.RuntimeFrom(e2etest.Net0(), dir)
	late := w.NewPod(rt, "late", e2etest.TCP(8080, 80))
	if err := late.TryAdd(); err == nil || !strings.Contains(err.Error(), "install both of one release") {
		t.Fatalf("ADD between two releases: %v", err)
	}
	late.MustDel()
	laid := make(chan error, 1)
	time.AfterFunc(netlab.Patient(300*time.Millisecond), func() { laid <- lay(e2etest.Programs.Path(install.Multicall)) })
	app := w.AddPod(rt, "app", e2etest.TCP(8081, 80))
	if err := <-laid; err != nil {
		t.Fatal(err)
	}
	mustReach(t, w, app)
}

// The helper matches the allowlist of the tuning plugin.
func TestPrivilegedAllowlist(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.DoOnNode(func() error {
		if err := os.MkdirAll("/etc/cni/tuning", 0o755); err != nil {
			return err
		}
		return os.WriteFile("/etc/cni/tuning/allowlist.conf", []byte("^net\\.core\\.\n"), 0o644)
	})
	for key, want := range map[string]string{"net.core.somaxconn": "", "net.ipv4.ip_forward": "is not on the node's allowlist"} {
		conf := `{"cniVersion":"1.1.0","name":"n","type":"tuning","sysctl":{"` + key + `":"1"}}`
		var said string
		w.DoOnNode(func() (err error) {
			said, err = netlab.Run("sh", "-c", "echo '"+conf+"' | CNI_COMMAND=STATUS CNI_PATH="+e2etest.Programs.Dir+" "+e2etest.Programs.Path("tuning")+" || true")
			return err
		})
		if want == "" && said != "" || !strings.Contains(said, want) {
			t.Errorf("%s: %q, want %q", key, said, want)
		}
	}
}
