// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/md5" // the format of DEBIAN/md5sums
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// settings is the file of the packages that operators edit.
const settings = "etc/default/sluice"

// rpmArch is an architecture as rpm names it.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// makePackages makes a deb and an rpm for each architecture. Nothing in them is run, so one machine makes all.
func (r *release) makePackages() error {
	for _, arch := range r.arches {
		if err := r.makeDeb(arch); err != nil {
			return fmt.Errorf("deb for %s: %w", arch, err)
		}
		if err := r.makeRPM(arch); err != nil {
			return fmt.Errorf("rpm for %s: %w", arch, err)
		}
	}
	return nil
}

// scriptValues are what the packages' scripts name.
func (r *release) scriptValues(arch string) (map[string]string, error) {
	names, err := programs()
	if err != nil {
		return nil, err
	}
	all, services, err := units(names)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(packageFiles, "description"))
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"VERSION": r.packageVersion(), "ARCH": arch, "MAINTAINER": r.from, "DESCRIPTION": strings.TrimSpace(string(text)),
		"UNITS": strings.Join(all, " "), "SERVICES": strings.Join(services, " "),
	}, nil
}

func (r *release) makeDeb(arch string) error {
	files, err := r.payload(arch, "dpkg")
	if err != nil {
		return err
	}
	values, err := r.scriptValues(arch)
	if err != nil {
		return err
	}
	var size int64
	sums := ""
	all, names := files.withFolders()
	for _, name := range names {
		size += 1 + int64(len(all[name].content))/1024
		if all[name].mode.IsRegular() && name != settings {
			sums += fmt.Sprintf("%x  %s\n", md5.Sum(all[name].content), name) // the format of DEBIAN/md5sums
		}
	}
	values["SIZE"] = strconv.FormatInt(size, 10)
	control, err := r.filled("control", values)
	if err != nil {
		return err
	}
	for line := range strings.Lines(values["DESCRIPTION"] + "\n") {
		if strings.TrimSpace(line) == "" {
			line = ".\n"
		}
		control = append(control, " "+line...)
	}
	files.add("DEBIAN/control", 0o644, control)
	files.add("DEBIAN/md5sums", 0o644, []byte(sums))
	files.add("DEBIAN/conffiles", 0o644, []byte("/"+settings+"\n"))
	files.add("DEBIAN/triggers", 0o644, []byte("interest-noawait /opt/cni/bin\n"))
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		text, err := r.filled(script+".sh", values)
		if err != nil {
			return err
		}
		files.add("DEBIAN/"+script, 0o755, text)
	}
	dir := filepath.Join(r.work, "deb", arch)
	if err := files.writeTo(dir, r.time); err != nil {
		return err
	}
	// One thread: blocks that several threads compress are cut otherwise. Level 9 has a window of 64 MB, which holds several programs:
	// what they share costs once.
	return r.pack(r.result("sluice_%s_%s.deb", r.packageVersion(), arch), func(file string) *exec.Cmd {
		return exec.Command("dpkg-deb", "--root-owner-group", "--threads-max=1", "-Zxz", "-z9", "--build", dir, file)
	})
}

func (r *release) makeRPM(arch string) error {
	files, err := r.payload(arch, "rpm")
	if err != nil {
		return err
	}
	values, err := r.scriptValues(arch)
	if err != nil {
		return err
	}
	dir := filepath.Join(r.work, "rpm", arch)
	values["TREE"] = filepath.Join(dir, "tree")
	if err := files.writeTo(values["TREE"], r.time); err != nil {
		return err
	}
	values["FILES"] = fileList(files)
	spec, err := r.filled("sluice.spec", values)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "sluice.spec"), spec, 0o644); err != nil { //nolint:gosec // scratch
		return err
	}
	file := r.result("sluice-%s-1.%s.rpm", r.packageVersion(), rpmArch[arch])
	return r.pack(file, func(file string) *exec.Cmd {
		return exec.Command("rpmbuild", "-bb", "--quiet", "--target", rpmArch[arch]+"-linux",
			"--define", "_topdir "+dir, "--define", "_rpmdir "+filepath.Dir(file), "--define", "_rpmfilename "+filepath.Base(file),
			"--define", "_dbpath "+filepath.Join(dir, "db"), filepath.Join(dir, "sluice.spec"))
	})
}

// fileList is the %files of the spec. Folders of the system stay those of other packages.
func fileList(files tree) string {
	var b strings.Builder
	b.WriteString("%defattr(-,root,root)\n")
	all, names := files.withFolders()
	for _, name := range names {
		switch {
		case name == settings:
			b.WriteString("%config(noreplace) /" + name + "\n")
		case !all[name].mode.IsDir():
			b.WriteString("/" + name + "\n")
		case files[name].mode.IsDir() || strings.Contains(name, "/sluice"):
			b.WriteString("%dir /" + name + "\n")
		}
	}
	return b.String()
}

// pack runs a packager that writes a file, and puts the file among the results when it is whole.
func (r *release) pack(file string, command func(string) *exec.Cmd) error {
	temp := filepath.Join(r.work, filepath.Base(file))
	cmd := command(temp)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.time.Unix(), 10), "LC_ALL=C", "TZ=UTC")
	if _, err := output(cmd); err != nil {
		return err
	}
	packed, err := os.ReadFile(temp)
	if err != nil {
		return err
	}
	return create(file, func(w io.Writer) error {
		_, err := w.Write(packed)
		return err
	})
}
