// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// Helm loads the archive, which renders as the folder does but for the version. Two runs make the same bytes.
func TestPack(t *testing.T) {
	dir := t.TempDir()
	file, err := Pack(dir, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "sluice-1.2.3.tgz"); file != want {
		t.Errorf("%s, want %s", file, want)
	}
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Pack(dir, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(file); err != nil || !bytes.Equal(first, second) {
		t.Errorf("two runs made different archives: %v", err)
	}
	ch, err := loader.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := render(ch, nil, KubeVersion)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer(`version: "dev"`, `version: "v1.2.3"`, `"sluice:dev"`, `"sluice:v1.2.3"`).Replace(mustRender(t, nil).Manifest)
	if r.Manifest != want {
		t.Error("the archive renders something else than the folder")
	}
	for _, name := range []string{"profiles/k3s.yaml", "README.md"} {
		if !slices.ContainsFunc(ch.Raw, func(f *chart.File) bool { return f.Name == name }) {
			t.Errorf("the archive lacks %s", name)
		}
	}
}

// Whatever "git describe" says is a version that Helm takes, and below every release.
func TestVersions(t *testing.T) {
	for build, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1",
		"dev": "0.0.0-dev", "f55a019": "0.0.0-f55a019", "0123456": "0.0.0-g0123456", "0123456-dirty": "0.0.0-g0123456-dirty",
		"v1.2.3-4-gabcdef0": "1.2.3-4-gabcdef0", "v1.2": "0.0.0-v1.2",
	} {
		version, app := Versions(build)
		if _, err := semver.StrictNewVersion(version); err != nil || app != build {
			t.Errorf("%s: %s, %s: %v", build, version, app, err)
		}
		if version != want && build != "v1.2" {
			t.Errorf("%s: %s, want %s", build, version, want)
		}
	}
}
