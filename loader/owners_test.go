// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

// asNobody runs a command as a user without privileges.
func (e *env) asNobody(name string, args ...string) {
	e.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// shared mounts a bpffs that any user may write to, as some tools do. The directory above lets them in.
func (e *env) shared(mode string) {
	e.t.Helper()
	for dir := e.o.Config.BPFFS; dir != os.TempDir(); dir = filepath.Dir(dir) {
		e.ok(os.Chmod(dir, 0o755))
	}
	e.ok(unix.Mount("bpffs", e.o.Config.BPFFS, "bpf", 0, "mode="+mode))
}

// On a bpffs that any user may write to, another user who comes first gets no pins, and a DEL does not wait for that user.
func TestPrivilegedPinsOfAnotherUser(t *testing.T) {
	for name, attack := range map[string]func(e *env, sluice string){
		"directory": func(e *env, sluice string) { e.asNobody("mkdir", sluice) },
		"symbolic link": func(e *env, sluice string) {
			e.asNobody("mkdir", "-m", "0777", filepath.Dir(sluice)+"/elsewhere")
			e.asNobody("ln", "-s", filepath.Dir(sluice)+"/elsewhere", sluice)
		},
		"link to a directory of root": func(e *env, sluice string) { e.asNobody("ln", "-s", filepath.Dir(e.o.RunDir), sluice) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.shared("1777")
			sluice := e.o.Config.BPFFS + "/sluice"
			attack(e, sluice)
			before := pathsBelow(e.o.Config.BPFFS)
			if _, err := Open(e.ctx, e.o); !errors.Is(err, ErrForeign) {
				t.Errorf("Open: got %v, want ErrForeign", err)
			}
			if _, err := OpenExisting(e.ctx, e.o); !errors.Is(err, ErrNotLoaded) {
				t.Errorf("OpenExisting: got %v, want ErrNotLoaded", err)
			}
			if err := CheckOwners(e.o); !errors.Is(err, ErrForeign) {
				t.Errorf("CheckOwners: got %v", err)
			}
			if after := pathsBelow(e.o.Config.BPFFS); len(after) != len(before) {
				t.Errorf("made in the directory of another user: %v", after)
			}
			if pintree.Exists(filepath.Dir(e.o.RunDir) + "/v2") {
				t.Error("made behind a symbolic link")
			}
			e.ok(os.Remove(sluice)) // as the message says
			d := e.open()
			e.ok(d.Enable(e.ctx, e.pod("pod1", "10.1.0.2/16"), FeatureAdmit))
			e.ok(CheckOwners(e.o))
		})
	}
}

// Directories that another user may write to are refused by every way to open, and named.
func TestPrivilegedPinsWritableByOthers(t *testing.T) {
	for name, dir := range map[string]func(d *Datapath) string{
		"sluice":        func(d *Datapath) string { return d.tree.Paths.BPFFS.Path() + "/sluice" },
		"version":       func(d *Datapath) string { return filepath.Dir(d.tree.Paths.Dir) },
		"namespace":     func(d *Datapath) string { return d.tree.Paths.Dir },
		"maps":          func(d *Datapath) string { return d.tree.Paths.Maps() },
		"progs":         func(d *Datapath) string { return d.tree.Paths.Progs() },
		"links":         func(d *Datapath) string { return d.tree.Paths.Links() },
		"podns":         func(d *Datapath) string { return d.tree.Paths.Podns() },
		"bpffs":         func(d *Datapath) string { return d.tree.Paths.BPFFS.Path() },
		"run directory": func(d *Datapath) string { return d.tree.RunDir },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			path := dir(e.open())
			for _, mode := range []os.FileMode{0o770, 0o707} {
				e.ok(os.Chmod(path, mode))
				for way, err := range map[string]error{"Open": second(Open(e.ctx, e.o)), "OpenExisting": second(OpenExisting(e.ctx, e.o)), "CheckOwners": CheckOwners(e.o)} {
					if !errors.Is(err, ErrForeign) {
						t.Errorf("%s, %o: got %v, want ErrForeign", way, mode, err)
					}
				}
			}
			e.ok(os.Chmod(path, 0o700))
			e.open()
		})
	}
}

func second(_ *Datapath, err error) error { return err }
