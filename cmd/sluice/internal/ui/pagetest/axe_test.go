// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// axe-core as the registry of npm has it. It is not part of the repository.
const (
	axeName = "axe-core"
	axeVer  = "4.14.1"
	axeSum  = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==" // SHA-512
)

// axe returns the script that looks for barriers. npm fetches it once into the user's cache directory.
func axe(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "sluice-axe")
	file := filepath.Join(dir, axeName+"-"+axeVer+".tgz")
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		npm := exec.CommandContext(t.Context(), "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", dir, axeName+"@"+axeVer)
		if out, err := npm.CombinedOutput(); err != nil {
			t.Fatalf("npm pack: %v\n%s", err, out)
		}
		data, err = os.ReadFile(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha512.Sum512(data); base64.StdEncoding.EncodeToString(sum[:]) != axeSum {
		t.Fatalf("%s has another sum than %s: remove it", file, axeSum)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("axe.min.js in %s: %v", file, err)
		}
		if h.Name != "package/axe.min.js" {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}
