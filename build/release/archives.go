// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// checksumFile lists the digests of all results.
const checksumFile = "SHA256SUMS"

// makeArchives makes an archive for each architecture with what a package has, for nodes without a packager: programs to be
// installed by "sluice install", man pages, completions, units.
func (r *release) makeArchives() error {
	for _, arch := range r.arches {
		name := fmt.Sprintf("sluice-%s-linux-%s", r.version, arch)
		t, err := r.licences(name + "/licences")
		if err != nil {
			return err
		}
		if err := r.fillArchive(t, name, arch); err != nil {
			return err
		}
		if err := t.writeArchive(r.result("%s.tar.gz", name), r.time); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) fillArchive(t tree, dir, arch string) error {
	names, err := programs()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.copy(path.Join(dir, "bin", name), r.program(arch, name), 0o755); err != nil {
			return err
		}
	}
	for _, page := range pages {
		if err := t.copy(path.Join(dir, page), page, 0o644); err != nil {
			return err
		}
	}
	all, _, err := units(names)
	if err != nil {
		return err
	}
	for _, name := range all {
		if err := t.copy(path.Join(dir, "systemd", name), filepath.Join(unitFiles, name), 0o644); err != nil {
			return err
		}
	}
	if err := t.copy(path.Join(dir, "udev", filepath.Base(udevRules)), udevRules, 0o644); err != nil {
		return err
	}
	manual, err := r.manual()
	if err != nil {
		return err
	}
	for name, text := range manual {
		t.add(path.Join(dir, "man", name), 0o644, text)
	}
	for _, program := range completed {
		for _, shell := range shells {
			text, err := r.completion(program, shell)
			if err != nil {
				return err
			}
			t.add(path.Join(dir, "completion", program+"."+shell), 0o644, text)
		}
	}
	return nil
}

// makeChecksums lists the digests of all files in the folder of the results, as sha256sum does.
func (r *release) makeChecksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == checksumFile {
			continue
		}
		sum, err := digest(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		sums[e.Name()] = sum
	}
	return create(r.result(checksumFile), func(w io.Writer) error {
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			if _, err := fmt.Fprintf(w, "%s  %s\n", sums[name], name); err != nil {
				return err
			}
		}
		return nil
	})
}

// digest returns the SHA-256 of a file in hexadecimal.
func digest(file string) (string, error) {
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
