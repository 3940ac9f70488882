// SPDX-License-Identifier: Apache-2.0

package ipamaccess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

type world struct {
	*Access
	now   time.Time
	asked int
	fail  error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{now: time.Unix(1e9, 0)}
	w.Access = &Access{
		Conf: filepath.Join(t.TempDir(), "net.d"), ConfDir: "/etc/cni/net.d", Namespace: "pools",
		Server: &rest.Config{Host: "https://192.0.2.1:6443", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("-----BEGIN CERTIFICATE-----")}},
		Now:    func() time.Time { return w.now },
		Token: func(_ context.Context, d time.Duration) (string, time.Time, error) {
			w.asked++
			return fmt.Sprint("token-", w.asked), w.now.Add(d), w.fail
		},
	}
	return w
}

func (w *world) read(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(w.Conf, "whereabouts.d", name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: mode %v, want 0600", name, info.Mode())
	}
	return string(text)
}

func (w *world) mustEnsure(t *testing.T) {
	t.Helper()
	if err := w.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The kubeconfig is what client-go reads, is root's alone, is written again when it was changed, and has a new token in time.
func TestEnsure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustEnsure(t)
	path := filepath.Join(w.Conf, "whereabouts.d", "sluice-ipam.kubeconfig")
	text := w.read(t, "sluice-ipam.kubeconfig")
	raw, err := clientcmd.Load([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	kc := raw.Contexts[raw.CurrentContext]
	if kc.Namespace != "pools" || raw.AuthInfos[kc.AuthInfo].Token != "token-1" || raw.Clusters[kc.Cluster].Server != "https://192.0.2.1:6443" ||
		!strings.Contains(string(raw.Clusters[kc.Cluster].CertificateAuthorityData), "BEGIN") {
		t.Errorf("%s", text)
	}
	if flat := w.read(t, "whereabouts.conf"); !strings.Contains(flat, `"/etc/cni/net.d/whereabouts.d/sluice-ipam.kubeconfig"`) {
		t.Errorf("%s", flat)
	}
	w.now = w.now.Add(11 * time.Hour)
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.mustEnsure(t)
	if again := w.read(t, "sluice-ipam.kubeconfig"); again != text || w.asked != 1 {
		t.Errorf("after %d tokens: %s", w.asked, again)
	}
	if err := os.Chmod(path, 0o644); err != nil { // what made it readable
		t.Fatal(err)
	}
	w.mustEnsure(t)
	_ = w.read(t, "sluice-ipam.kubeconfig")
	w.now = w.now.Add(2 * time.Hour)
	w.mustEnsure(t)
	if again := w.read(t, "sluice-ipam.kubeconfig"); !strings.Contains(again, "token-2") {
		t.Errorf("half of the time is over: %s", again)
	}
	// Without an API server the old one stays.
	w.now, w.fail = w.now.Add(13*time.Hour), errors.New("no answer")
	if err := w.Ensure(t.Context()); !errors.Is(err, w.fail) {
		t.Errorf("%v", err)
	}
	if again := w.read(t, "sluice-ipam.kubeconfig"); !strings.Contains(again, "token-2") {
		t.Errorf("%s", again)
	}
}

// Files of whereabouts stay as they are.
func TestForeignFlatFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(w.Conf, "whereabouts.d", "whereabouts.conf")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("whereabouts'"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.mustEnsure(t)
	if err := w.Remove(); err != nil {
		t.Fatal(err)
	}
	if text := w.read(t, "whereabouts.conf"); text != "whereabouts'" {
		t.Errorf("%s", text)
	}
	if _, err := os.Stat(filepath.Join(w.Conf, "whereabouts.d", "sluice-ipam.kubeconfig")); err == nil {
		t.Error("the kubeconfig is there")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.mustEnsure(t)
	if err := errors.Join(w.Remove(), w.Remove()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

// A token is sent to no server that anybody can pretend to be.
func TestInsecureServer(t *testing.T) {
	t.Parallel()
	for _, server := range []*rest.Config{{Host: "https://192.0.2.1"}, {Host: "http://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}}} {
		w := newWorld(t)
		w.Server = server
		if err := w.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), server.Host) {
			t.Errorf("%v", err)
		}
	}
}
