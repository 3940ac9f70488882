// SPDX-License-Identifier: Apache-2.0

// Command release makes what users get: the image, packages for Debian and for RPM systems, archives, the list of parts (SBOM)
// and checksums, for every architecture. Run it at the root of the repository; "make image", "make packages" and "make release" do.
// The same commit, Go release and packaging tools give the same bytes, wherever the repository lies: docs/dev/releasing.md.
// It asks no network.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// release is one version in the making.
type release struct {
	version string    // as git describes it, for example v1.2.3
	commit  string    // the revision it is made from
	time    time.Time // of every file in it
	image   string    // name of the image, without a tag
	out     string    // where the results go
	work    string    // scratch, below the repository's bin/
	arches  []string
	bom     string // the cyclonedx-gomod program
	from    string // who answers for the packages
}

// products are what can be asked for, in the order in which they are made.
var products = []struct {
	name string
	make func(*release) error
}{
	{"image", (*release).makeImage},
	{"packages", (*release).makePackages},
	{"archives", (*release).makeArchives},
	{"sbom", (*release).makeSBOM},
	{"checksums", (*release).makeChecksums},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	r := &release{}
	names := make([]string, 0, len(products))
	for _, p := range products {
		names = append(names, p.name)
	}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "version, as git describes it")
	flags.StringVar(&r.commit, "commit", "", "revision that it is made from")
	epoch := flags.Int64("epoch", 0, "time of every file, in seconds since 1970: that of the commit")
	flags.StringVar(&r.image, "image", "sluice", "name of the image")
	flags.StringVar(&r.out, "out", "bin/release", "folder of the results")
	flags.StringVar(&r.bom, "sbom-tool", "", "the cyclonedx-gomod program")
	flags.StringVar(&r.from, "maintainer", "Sluice maintainers <maintainers@sluice.invalid>", "who answers for the packages")
	arches := flags.String("arch", "amd64,arm64", "architectures")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: release [flags] PRODUCT...\nproducts: %s\n", strings.Join(names, ", "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.time = time.Unix(*epoch, 0).UTC()
	r.arches = strings.Split(*arches, ",")
	if err := r.check(flags.Args(), names, *epoch); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var err error
	if r.work, err = os.MkdirTemp("", "sluice-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	return r.make(flags.Args())
}

// check says what is wrong with the flags before anything is made.
func (r *release) check(asked, names []string, epoch int64) error {
	switch {
	case len(asked) == 0:
		return fmt.Errorf("name what to make: %s", strings.Join(names, ", "))
	case !validVersion.MatchString(r.version):
		return fmt.Errorf("-version %q: must be letters, digits, dots, plus signs and hyphens", r.version)
	case epoch <= 0:
		return errors.New("-epoch: must be the time of the commit: git log -1 --format=%ct")
	case !validImage.MatchString(r.image):
		return fmt.Errorf("-image %q: must be a name without a tag, in lower case", r.image)
	}
	for _, name := range asked {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%q: is no product; the products are %s", name, strings.Join(names, ", "))
		}
	}
	for _, arch := range r.arches {
		if rpmArch[arch] == "" {
			return fmt.Errorf("-arch %q: must be amd64 or arm64", arch)
		}
	}
	return nil
}

func (r *release) make(asked []string) error {
	if err := r.compile(); err != nil {
		return err
	}
	for _, p := range products {
		if !slices.Contains(asked, p.name) {
			continue
		}
		if err := p.make(r); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// result returns the path of a file among the results.
func (r *release) result(format string, args ...any) string {
	return filepath.Join(r.out, fmt.Sprintf(format, args...))
}
