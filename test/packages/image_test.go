// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// maxImage is what a node may have to fetch: the compressed layers of one architecture.
const maxImage = 20_000_000

// copyRepository copies the files that git knows, or would, to a folder.
func copyRepository(t *testing.T, to string) {
	t.Helper()
	out, err := command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(out, "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755)
		}
		var data []byte
		if err == nil {
			data, err = os.ReadFile(filepath.Join(root, name))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// digests returns the digest of each file of a folder.
func digests(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sums[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return sums
}

// Two builds in folders of different names, one with blanks, with another umask and another time zone, are equal byte by byte. The first has its
// parts looked at.
func TestReproducible(t *testing.T) {
	require.Asked(t, *whole, target)
	one, two := filepath.Join(scratch, "one"), filepath.Join(scratch, "a folder of another", "length")
	var sums []map[string]string
	copyRepository(t, one)
	copyRepository(t, two)
	for i, dir := range []string{one, two} {
		if i == 1 {
			t.Setenv("TZ", "Pacific/Auckland")
			t.Setenv("LC_ALL", "C")
			keepGoFolders(t)
			t.Setenv("HOME", t.TempDir()) // rpm reads macros there
			defer unmask(0o027)()
		}
		// The packages of arm64 stand for both: what differs are the programs, which are in the image too.
		if err := release(dir, "out", newer, "amd64,arm64", "image", "sbom", "checksums"); err != nil {
			t.Fatal(err)
		}
		if err := release(dir, "out-arm64", newer, "arm64", "archives", "packages", "checksums"); err != nil {
			t.Fatal(err)
		}
		all := digests(t, filepath.Join(dir, "out"))
		for name, sum := range digests(t, filepath.Join(dir, "out-arm64")) {
			all["arm64/"+name] = sum
		}
		sums = append(sums, all)
	}
	for name, sum := range sums[0] {
		if other := sums[1][name]; other != sum {
			t.Errorf("%s differs: %s and %s", name, sum, other)
		}
	}
	if len(sums[0]) != 3+4 || len(sums[1]) != len(sums[0]) {
		t.Errorf("the builds have %d and %d files", len(sums[0]), len(sums[1]))
	}
	out := filepath.Join(one, "out")
	t.Run("image", func(t *testing.T) { checkImage(t, filepath.Join(out, "sluice-"+newer+"-image.tar"), "amd64", "arm64") })
	t.Run("sbom", func(t *testing.T) { checkSBOM(t, out) })
	t.Run("checksums", func(t *testing.T) {
		cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		cmd.Dir = out
		if _, err := output(cmd); err != nil {
			t.Error(err)
		}
	})
	t.Run("archive", func(t *testing.T) {
		checkArchive(t, filepath.Join(one, "out-arm64", "sluice-"+newer+"-linux-arm64.tar.gz"))
	})
}

// untar unpacks an archive.
func untar(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := command("tar", "-xf", file, "-C", dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkImage looks at every manifest of the image. wanted are its architectures.
func checkImage(t *testing.T, file string, wanted ...string) {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(untar(t, file))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v: %+v, want one index", err, manifest)
	}
	if got := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "sluice:"+newer {
		t.Errorf("the image is called %q", got)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var arches []string
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		arches = append(arches, m.Platform.Architecture)
		t.Run(m.Platform.Architecture, func(t *testing.T) { checkPlatform(t, img, m.Platform.Architecture) })
	}
	if !slices.Equal(arches, wanted) {
		t.Errorf("the image is for %v, want %v", arches, wanted)
	}
}

func checkPlatform(t *testing.T, img v1.Image, arch string) {
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			t.Fatal(err)
		}
		size += n
	}
	t.Logf("%.1f MB in %d layers", float64(size)/1e6, len(layers))
	if size > maxImage {
		t.Errorf("a node fetches %d bytes, want at most %d", size, maxImage)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != arch || config.Config.Labels["org.opencontainers.image.version"] != newer {
		t.Errorf("it is for %s/%s, with labels %v", config.OS, config.Architecture, config.Config.Labels)
	}
	machine := map[string]byte{"amd64": 62, "arm64": 183}[arch] // e_machine of elf(5)
	files := map[string]int64{}
	archive := tar.NewReader(mutate.Extract(img))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files["/"+h.Name] = h.Size
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 || h.ModTime.Unix() != 1764000000 {
			t.Errorf("%s: owner %d:%d, mode %o, time %s", h.Name, h.Uid, h.Gid, h.Mode, h.ModTime)
		}
		if !strings.HasPrefix(h.Name, "usr/bin/") || h.Typeflag != tar.TypeReg {
			continue
		}
		head := make([]byte, 20)
		if _, err := io.ReadFull(archive, head); err != nil || head[18] != machine {
			t.Errorf("%s is not a program for %s: % x, %v", h.Name, arch, head, err)
		}
	}
	for _, want := range []string{"/usr/bin/sluice", "/usr/bin/sluice-cni", "/usr/bin/sluice-helper", "/usr/bin/sluice-dhcp",
		config.Config.Entrypoint[0], "/usr/share/doc/sluice/licences/sluice/LICENSE", "/usr/share/doc/sluice/licences/sluice/bpf/LICENSE.GPL-2.0",
		"/usr/share/doc/sluice/licences/go/LICENSE"} {
		if files[want] == 0 {
			t.Errorf("there is no %s", want)
		}
	}
	for _, none := range []string{"/bin/sh", "/usr/bin/sh"} {
		if _, ok := files[none]; ok {
			t.Errorf("there is a %s", none)
		}
	}
}

// checkSBOM compares the SBOM with the programs in the image, and with the modules that go says are in them.
func checkSBOM(t *testing.T, out string) {
	in, err := os.Open(filepath.Join(out, "sluice-"+newer+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var bom cdx.BOM
	if err := json.NewDecoder(in).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	modules, programs := map[string]string{}, map[string]string{}
	for _, c := range *bom.Components {
		switch {
		case c.Type == cdx.ComponentTypeLibrary:
			modules[c.Name] = c.Version
			if c.Evidence == nil && c.Licenses == nil {
				t.Errorf("%s has no licence", c.Name)
			}
		case c.Hashes != nil:
			programs[c.BOMRef] = (*c.Hashes)[0].Value
		}
	}
	image, err := os.ReadFile(filepath.Join(out, "sluice-"+newer+"-image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := programs["image"], fmt.Sprintf("%x", sha256.Sum256(image)); got != want {
		t.Errorf("the image has digest %s, want %s", got, want)
	}
	listed, err := command("env", "GOWORK=off", "go", "list", "-C", root, "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/...")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(listed) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "" && modules[name] != version {
			t.Errorf("%s %s: the SBOM has version %q", name, version, modules[name])
		}
	}
	for _, want := range []string{"program:amd64/sluice-cni", "program:arm64/sluice-helper"} {
		if programs[want] == "" {
			t.Errorf("there is no digest of %s", want)
		}
	}
	if modules["std"] == "" {
		t.Error("it does not name Go's standard library")
	}
}

// checkArchive installs plugins from the archive, as an operator does without a packager. Its programs are another machine's, so the
// tool is this one's.
func checkArchive(t *testing.T, file string) {
	dir := filepath.Join(untar(t, file), "sluice-"+newer+"-linux-arm64")
	for _, want := range []string{"bin/sluice-cni", "bin/sluice", "man/sluice.8", "man/sluice-install.8", "completion/sluice.bash", "completion/sluice.zsh",
		"completion/sluice.fish", "completion/sluice-agent.bash", "man/sluice-agent.8", "man/sluice-agent-remove.8", "systemd/sluice-dhcp.socket", "licences/sluice/LICENSE", "README.md"} {
		if info, err := os.Stat(filepath.Join(dir, want)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", want, err)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "man/sluice.8"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), `"2025-11-24" "Sluice `+newer+`"`) {
		t.Errorf("the man page has no date and version: %.200s", page)
	}
}
