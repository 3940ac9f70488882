// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entries reads a newc archive as the kernel does (init/initramfs.c): "mode
// links name size" and the content of small files.
func entries(t *testing.T, data []byte) []string {
	t.Helper()
	var out []string
	for pos := 0; pos < len(data); {
		if data[pos] == 0 { // between archives
			pos += 4
			continue
		}
		if string(data[pos:pos+6]) != "070701" {
			t.Fatalf("no header at %d: %q", pos, data[pos:pos+6])
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(string(data[pos+6+8*i:pos+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		mode, links, size, nameLen := field(1), field(4), field(6), field(11)
		name := string(data[pos+110 : pos+110+nameLen-1])
		body := (pos + 110 + nameLen + 3) &^ 3
		out = append(out, fmt.Sprintf("%o %d %s %q", mode, links, name, data[body:body+size]))
		pos = (body + size + 3) &^ 3
	}
	return out
}

func TestArchive(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "tool")
	if err := os.WriteFile(source, []byte("12345"), 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "a.cpio")
	a, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	a.Dir("usr/bin")
	a.Symlink("usr/bin", "bin")
	a.Text("etc/x", "abc", 0o644)
	a.Files(source, "usr/bin/one", "usr/bin/two")
	a.File(source, "opt/y")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`40755 2 usr ""`, `40755 2 usr/bin ""`, `120777 1 bin "usr/bin"`, `40755 2 etc ""`, `100644 1 etc/x "abc"`,
		`100755 2 usr/bin/one ""`, `100755 2 usr/bin/two "12345"`, `40755 2 opt ""`, `100755 1 opt/y "12345"`, `0 1 TRAILER!!! ""`,
	}
	if d := cmp.Diff(want, entries(t, data)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(append(want, want...), entries(t, append(bytes.Clone(data), data...))); d != "" {
		t.Errorf("two in a row: %s", d)
	}
}

// A missing file is an error, and not a smaller archive.
func TestArchiveMissingFile(t *testing.T) {
	a, err := Create(filepath.Join(t.TempDir(), "a.cpio"))
	if err != nil {
		t.Fatal(err)
	}
	a.File("/nonexistent", "x")
	a.Text("y", "z", 0o644)
	if err := a.Close(); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

// bzImage is as much of one as payload reads.
func bzImage(setupSects byte, payload []byte) []byte {
	sects := int(setupSects)
	if sects == 0 {
		sects = 4
	}
	b := make([]byte, (sects+1)*512+100)
	b[offSetupSects] = setupSects
	copy(b[offMagic:], "HdrS")
	binary.LittleEndian.PutUint32(b[offPayload:], 100)
	binary.LittleEndian.PutUint32(b[offPayloadLength:], uint32(len(payload)))
	return slices.Concat(b, payload)
}

func TestVmlinux(t *testing.T) {
	elf := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel"), 1000)...)
	pack := func(name string, args ...string) []byte {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Stdin = bytes.NewReader(elf)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return out
	}
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(elf)))
	tests := map[string][]byte{"gzip": bzImage(0, pack("gzip", "-c"))}
	// The kernel's build appends the length to what these make.
	for name, args := range map[string][]string{"lz4": {"-lc"}, "xz": {"-c", "--check=crc32"}, "zstd": {"-c"}} {
		if _, err := exec.LookPath(name); err == nil {
			tests[name] = bzImage(30, append(pack(name, args...), length...))
		}
	}
	for name, image := range tests {
		got, err := Vmlinux(context.Background(), image)
		if err != nil || !bytes.Equal(got, elf) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	for name, image := range map[string][]byte{
		"empty": nil, "no magic": make([]byte, 4096), "unknown": bzImage(1, []byte("????????")),
		"cut": bzImage(1, pack("gzip", "-c"))[:1150], "no ELF": bzImage(1, []byte("\x1f\x8b not packed")),
	} {
		if _, err := Vmlinux(context.Background(), image); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestModuleLists(t *testing.T) {
	mods := []module{
		{name: "a", path: "kernel/a.ko", depends: []string{"b", "c", "builtin"}, aliases: []string{"rtnl-link-a"}},
		{name: "b", path: "kernel/b.ko", depends: []string{"d"}},
		{name: "c", path: "kernel/c.ko", depends: []string{"d"}, pre: []string{"x", "y"}},
		{name: "d", path: "kernel/d.ko"},
	}
	want := map[string]string{
		"modules.dep": "kernel/a.ko: kernel/c.ko kernel/b.ko kernel/d.ko\nkernel/b.ko: kernel/d.ko\n" +
			"kernel/c.ko: kernel/d.ko\nkernel/d.ko:\n",
		"modules.alias":   "alias rtnl-link-a a\n",
		"modules.softdep": "softdep c pre: x y\n",
	}
	if d := cmp.Diff(want, lists(mods)); d != "" {
		t.Error(d)
	}
}

func TestWantedModules(t *testing.T) {
	for path, want := range map[string]bool{
		"kernel/net/sched/sch_fq.ko": true, "kernel/drivers/net/ipvlan/ipvlan.ko": true, "kernel/drivers/net/vrf.ko": true,
		"kernel/net/8021q/8021q.ko": true, "kernel/drivers/net/wireguard/wireguard.ko": true, "kernel/fs/overlayfs/overlay.ko": true,
		"kernel/drivers/net/ethernet/intel/ice/ice.ko": false, "kernel/net/bluetooth/bluetooth.ko": false, "kernel/fs/xfs/xfs.ko": false,
	} {
		if got := wantedModules.MatchString(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestSoftdep(t *testing.T) {
	if d := cmp.Diff([]string{"crc32c", "a_b"}, softdep("pre: crc32c post: a-b")); d != "" {
		t.Error(d)
	}
}

func TestMerged(t *testing.T) {
	for path, want := range map[string]string{
		"/bin/ip": "usr/bin/ip", "/usr/bin/ip": "usr/bin/ip", "/lib64/ld.so": "usr/lib64/ld.so", "/library/x": "library/x", "/lib/../sbin/nft": "usr/sbin/nft",
	} {
		if got := merged(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// The tools of this machine can be packed, and bring the libraries they load.
func TestBase(t *testing.T) {
	name := filepath.Join(t.TempDir(), "base.cpio")
	if err := Base(context.Background(), name); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"usr/bin/bash", "ld-linux-x86-64.so.2", "libc.so.6", "etc/passwd", "bin/sh"} {
		if !bytes.Contains(data, []byte(want+"\x00")) {
			t.Errorf("no %s", want)
		}
	}
	if !strings.HasPrefix(string(data), "070701") {
		t.Error("no archive")
	}
}
