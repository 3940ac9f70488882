// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/test/vm/apt"
	"github.com/sluice-cni/sluice/test/vm/image"
	"github.com/sluice-cni/sluice/test/vm/qemu"
)

// suites are where Debian keeps kernels, oldest first. A mirror may lack some.
var suites = []string{
	"bullseye", "bullseye-security", "bookworm", "bookworm-security", "bookworm-backports",
	"trixie", "trixie-security", "trixie-backports", "sid",
}

// kernel is one that is ready to boot.
type kernel struct {
	Series  string `json:"series"`
	Release string `json:"release"`
	// Vmlinux and Modules are files of the cache.
	Vmlinux string    `json:"vmlinux"`
	Modules string    `json:"modules"`
	Found   time.Time `json:"found"`
}

// lock keeps other processes from filling the cache at the same time.
func (o *options) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(o.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// prepareKernels returns the kernels of all series, fetching what the cache
// lacks.
func (o *options) prepareKernels(ctx context.Context, series []string) ([]kernel, error) {
	unlock, err := o.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var out []kernel
	var wanted []string
	for _, s := range series {
		if k, err := o.cached(s); err == nil && !o.refresh {
			out = append(out, k)
		} else {
			wanted = append(wanted, s)
		}
	}
	if len(wanted) == 0 {
		return out, nil
	}
	if err := o.fetchKernels(ctx, wanted); err != nil {
		return nil, err
	}
	out = nil
	for _, s := range series {
		k, err := o.cached(s)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

func (o *options) recordFile(series string) string {
	return filepath.Join(o.cache, "kernel-"+series+".json")
}

func (o *options) cached(series string) (k kernel, err error) {
	raw, err := os.ReadFile(o.recordFile(series))
	if err != nil {
		return k, err
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		return k, err
	}
	for _, f := range []string{k.Vmlinux, k.Modules} {
		if _, err := os.Stat(f); err != nil {
			return k, err
		}
	}
	return k, nil
}

// fetchKernels finds, fetches and unpacks kernels with an apt state that lives
// as long as this call.
func (o *options) fetchKernels(ctx context.Context, series []string) error {
	fmt.Fprintf(os.Stderr, "fetching kernels %s\n", strings.Join(series, ", "))
	work, err := os.MkdirTemp(o.cache, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	log, err := os.Create(filepath.Join(o.cache, "apt.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	state, err := apt.Open(ctx, apt.Options{Dir: filepath.Join(work, "apt"), Suites: suites, Log: log})
	if err != nil {
		return err
	}
	complaints, err := state.Update(ctx)
	if err != nil {
		return err
	}
	names, err := state.Names(ctx, "linux-")
	if err != nil {
		return err
	}
	for _, s := range series {
		found, err := apt.PickKernel(names, s)
		if err != nil {
			return fmt.Errorf("%w\nwhat apt said of its mirrors:\n%s", err, complaints)
		}
		if err := o.fetchKernel(ctx, state, work, s, found); err != nil {
			return fmt.Errorf("kernel %s: %w", found.Release, err)
		}
	}
	return nil
}

// fetchKernel makes one kernel bootable, unless the cache has that release.
func (o *options) fetchKernel(ctx context.Context, state *apt.State, work, series string, found apt.Kernel) error {
	dir := filepath.Join(o.cache, "kernels", found.Release)
	k := kernel{Series: series, Release: found.Release, Vmlinux: filepath.Join(dir, "vmlinux"), Modules: filepath.Join(dir, "modules.cpio"), Found: time.Now()}
	if _, err := os.Stat(dir); err == nil && !o.refresh {
		return o.record(k)
	}
	debs, err := state.Download(ctx, found.Packages...)
	if err != nil {
		return err
	}
	tree := filepath.Join(work, found.Release)
	if err := apt.Unpack(ctx, tree, debs...); err != nil {
		return err
	}
	fresh := filepath.Join(work, "new")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return err
	}
	if err := unpackKernel(ctx, tree, found.Release, fresh); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(tree), os.RemoveAll(dir), os.MkdirAll(filepath.Dir(dir), 0o755)); err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return o.record(k)
}

func (o *options) record(k kernel) error {
	raw, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.recordFile(k.Series), append(raw, '\n'), 0o644)
}

// unpackKernel makes vmlinux and modules.cpio in dir.
func unpackKernel(ctx context.Context, tree, release, dir string) error {
	var bz []byte
	var err error
	// It moved to the directory of the modules in 6.19.
	for _, name := range []string{"boot/vmlinuz-" + release, "usr/lib/modules/" + release + "/vmlinuz", "lib/modules/" + release + "/vmlinuz"} {
		if bz, err = os.ReadFile(filepath.Join(tree, name)); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("the packages hold no vmlinuz: %w", err)
	}
	elf, err := image.Vmlinux(ctx, bz)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "vmlinux"), elf, 0o644); err != nil {
		return err
	}
	return image.Modules(ctx, filepath.Join(dir, "modules.cpio"), tree, release)
}

// emulator returns a QEMU that is new enough: the installed one, the unpacked
// one of the cache, or one fetched now from the backports of this Debian.
func (o *options) emulator(ctx context.Context) (*qemu.Emulator, error) {
	if path, err := exec.LookPath("qemu-system-x86_64"); err == nil {
		e := &qemu.Emulator{Program: path, Accel: qemu.TCG}
		if _, major, err := e.Version(ctx); err == nil && major >= qemu.MinMajor {
			return e, nil
		}
	}
	unlock, err := o.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := filepath.Join(o.cache, "qemu")
	e := qemu.Unpacked(dir)
	if _, major, err := e.Version(ctx); err == nil && major >= qemu.MinMajor {
		return e, nil
	}
	if err := o.fetchEmulator(ctx, dir); err != nil {
		return nil, err
	}
	text, major, err := e.Version(ctx)
	if err == nil && major < qemu.MinMajor {
		err = fmt.Errorf("this Debian and its backports have QEMU %s only, %d is needed", text, qemu.MinMajor)
	}
	return e, err
}

func (o *options) fetchEmulator(ctx context.Context, dir string) error {
	codename, err := debianCodename()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "fetching QEMU")
	work, err := os.MkdirTemp(o.cache, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	log, err := os.Create(filepath.Join(o.cache, "apt-qemu.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	backports := codename + "-backports"
	state, err := apt.Open(ctx, apt.Options{
		Dir: filepath.Join(work, "apt"), Suites: []string{codename, codename + "-updates", codename + "-security", backports}, Installed: true, Log: log,
	})
	if err != nil {
		return err
	}
	complaints, err := state.Update(ctx)
	if err != nil {
		return err
	}
	debs, err := state.Install(ctx, backports, "qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
	if err != nil {
		return fmt.Errorf("%w\nwhat apt said of its mirrors:\n%s", err, complaints)
	}
	fresh := filepath.Join(work, "qemu")
	if err := apt.Unpack(ctx, fresh, debs...); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

func debianCodename() (string, error) {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok && strings.Contains(string(raw), "ID=debian") {
			return strings.Trim(name, `"`), nil
		}
	}
	return "", errors.New("QEMU here is older than needed, and this is no Debian to fetch a newer one for: install qemu-system-x86_64 10 or later")
}
