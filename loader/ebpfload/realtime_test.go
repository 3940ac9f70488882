// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/loadapi"
)

// A real-time kernel whose packets interrupt each other gets no datapath: only one that says that they do not.
func TestSerial(t *testing.T) {
	t.Parallel()
	const rt, other = "#1 SMP PREEMPT_RT Debian 6.18.15-1 (2026-03-02)", "#1 SMP PREEMPT_DYNAMIC Debian 6.18.15-1 (2026-03-02)"
	for _, tc := range []struct {
		name, version, config string
		err                   error
		no                    string
	}{
		{"not real-time", other, "", os.ErrNotExist, ""},
		{"with the lock", rt, "CONFIG_PREEMPT_RT=y\nCONFIG_PREEMPT_RT_NEEDS_BH_LOCK=y\n", nil, ""},
		{"without the lock", rt, "CONFIG_PREEMPT_RT=y\n# CONFIG_PREEMPT_RT_NEEDS_BH_LOCK is not set\n", nil, "it needs CONFIG_PREEMPT_RT_NEEDS_BH_LOCK"},
		{"nobody says", rt, "", os.ErrNotExist, "does not show"},
	} {
		err := serial(tc.version, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(tc.config)), tc.err })
		var no loadapi.UnsupportedError
		if tc.no == "" && err != nil || tc.no != "" && (!errors.As(err, &no) || !strings.Contains(no.Why, tc.no)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.no)
		}
	}
	if err := askSerial(); err != nil {
		t.Logf("this kernel: %v", err)
	}
}

// The kernel's own file comes first, and is compressed.
func TestKernelConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	compressed, plain := filepath.Join(dir, "config.gz"), filepath.Join(dir, "config")
	read := func(want string) {
		t.Helper()
		f, err := kernelConfig(compressed, plain)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := io.ReadAll(f); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := kernelConfig(compressed, plain); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without either: %v", err)
	}
	if err := os.WriteFile(plain, []byte("file"), 0o600); err != nil {
		t.Fatal(err)
	}
	read("file")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte("kernel")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), os.WriteFile(compressed, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	read("kernel")
}
