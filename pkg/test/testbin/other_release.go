// SPDX-License-Identifier: Apache-2.0

package testbin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// digest is the name of a set of datapath programs in pkg/bpfgen.
var digest = regexp.MustCompile(`"[0-9a-f]{64}"`)

// OtherRelease returns an overlay for the go command, a file in dir: with it, the datapath programs of the module at root are another set.
// So what is built is another release to the loader.
func OtherRelease(root, dir string) (string, error) {
	path := filepath.Join(root, "pkg", "bpfgen", "build_bpfel.go")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if len(digest.FindAll(text, -1)) != 1 {
		return "", fmt.Errorf("%s has no digest", path)
	}
	changed, overlay := filepath.Join(dir, "build.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, digest.ReplaceAll(text, []byte(`"`+strings.Repeat("0", 64)+`"`)), 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// BuildOtherRelease builds one of Programs as of another release into dir.
func BuildOtherRelease(dir, program string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	overlay, err := OtherRelease(root, dir)
	if err != nil {
		return err
	}
	return build(root, dir, []string{program}, "-overlay", overlay)
}
