// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// unpack returns the files of a bundle.
func unpack(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}

// What cannot be had is noted, in its place and in the README, and the rest is
// there.
func TestWriteNotesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	if err := os.WriteFile(log, append(bytes.Repeat([]byte("x"), maxLog), "the end"...), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	missing, err := Write(t.Context(), &out, "top", time.Unix(1, 0), []Part{
		Text("a", "text"),
		Command("b", "no-such-command-here", "-x"),
		Command("c", "sh", "-c", "echo before; echo why >&2; exit 3"),
		File("d", filepath.Join(dir, "none")),
		File("e", log),
		{"f", func(context.Context) ([]byte, error) { return []byte("half"), errors.New("broken") }},
	})
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for name, want := range map[string][]string{
		"top/a": {"text"}, "top/b": {"no-such-command-here is not installed"}, "top/c": {"# sh -c", "before\nwhy\n", "exit status 3"},
		"top/d": {"does not exist"}, "top/f": {"half", "broken"}, "top/README": {"Not in this bundle", "b: no-such-command-here", "c: exit status 3", "f: broken"},
	} {
		for _, w := range want {
			if !strings.Contains(files[name], w) {
				t.Errorf("%s lacks %q: %q", name, w, files[name])
			}
		}
	}
	if e := files["top/e"]; len(e) != maxLog || !strings.HasSuffix(e, "the end") {
		t.Errorf("the log has %d bytes and ends with %q", len(e), e[max(len(e)-10, 0):])
	}
	if len(missing) != 3 {
		t.Errorf("missing: %q", missing)
	}
}

// No part can be had twice under one name, and the log is taken where there is
// one.
func TestNodeParts(t *testing.T) {
	c := nodeconf.Default()
	c.Log.File = "/var/log/sluice.log"
	seen := map[string]bool{}
	for _, p := range Node(c) {
		if seen[p.Name] {
			t.Errorf("two parts %s", p.Name)
		}
		seen[p.Name] = true
	}
	if !seen["log/plugins"] || !seen["netfilter/ip6tables-legacy-save"] {
		t.Errorf("parts: %v", seen)
	}
}
