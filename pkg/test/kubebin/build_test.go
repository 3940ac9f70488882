// SPDX-License-Identifier: Apache-2.0

package kubebin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is built is fixed: each program's module has the sums of all that it requires, and is of the release that it is named by.
func TestModules(t *testing.T) {
	for name, p := range programs {
		root, err := p.root()
		if err != nil {
			t.Fatal(err)
		}
		if sums, err := os.ReadFile(filepath.Join(root, "go.sum")); err != nil || len(sums) == 0 {
			t.Errorf("%s: no sums: %v", name, err)
		}
		text, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if p.module == "kubernetes" && !strings.Contains(string(text), "k8s.io/kubernetes "+Version+"\n") {
			t.Errorf("%s: go.mod does not require Kubernetes %s", name, Version)
		}
	}
}

// A program is missing until it has the stamp of its module's present state, and an unknown name is an error.
func TestCurrent(t *testing.T) {
	dir := t.TempDir()
	is := func(want bool) string {
		t.Helper()
		ok, digest, err := current(dir, Etcd)
		if err != nil {
			t.Fatal(err)
		}
		if ok != want {
			t.Errorf("current: %v, want %v", ok, want)
		}
		return digest
	}
	digest := is(false)
	for name, data := range map[string]string{filepath.Join(dir, Etcd): "program", stamp(dir, Etcd): "of another state"} {
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is(false)
	if err := os.WriteFile(stamp(dir, Etcd), []byte(digest), 0o600); err != nil {
		t.Fatal(err)
	}
	is(true)
	if _, _, err := current(dir, "kubeadm"); err == nil {
		t.Error("an unknown program is found")
	}
}
