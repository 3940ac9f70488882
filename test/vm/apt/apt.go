// SPDX-License-Identifier: Apache-2.0

// Package apt fetches Debian packages of any suite through the machine's own
// configured mirror, without touching the machine's own package state: indexes,
// archives and configuration live in a directory of the caller's, no package is
// installed, and root is not needed. It runs apt-get, apt-cache and dpkg-deb.
package apt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// State is a private apt state in a directory.
type State struct {
	dir string
	log io.Writer
}

// Options of Open.
type Options struct {
	// Dir holds the state. It is made if missing.
	Dir string
	// Suites are the Debian suites to see ("bookworm", "trixie-backports"). A
	// name that ends in "-security" is looked for on the security mirror.
	Suites []string
	// Installed makes apt count what dpkg knows to be installed here, so that
	// Install fetches only what is missing. Otherwise nothing is installed.
	Installed bool
	// Log gets what apt says.
	Log io.Writer
}

// Open writes the configuration of a private state. Call Update before
// anything else of it.
func Open(ctx context.Context, o Options) (*State, error) {
	s := &State{dir: o.Dir, log: o.Log}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, err
		}
	}
	sources, err := sourceLines(ctx, o.Suites)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.path("sources.list"), []byte(sources), 0o644); err != nil {
		return nil, err
	}
	return s, os.WriteFile(s.path("apt.conf"), []byte(s.config(o.Installed)), 0o644)
}

func (s *State) path(name string) string { return filepath.Join(s.dir, name) }

// config sends everything that apt keeps to our directory, and takes away the
// hooks of the machine, which clean the machine's own caches. What says how to
// reach the mirror (proxies, certificates) stays.
func (s *State) config(installed bool) string {
	status := "/dev/null"
	if installed {
		status = "/var/lib/dpkg/status"
	}
	var b strings.Builder
	for _, kv := range [][2]string{
		{"Dir::Etc::sourcelist", s.path("sources.list")}, {"Dir::Etc::sourceparts", "-"},
		{"Dir::State::Lists", s.path("lists")}, {"Dir::State::status", status}, {"Dir::Cache", s.path("cache")},
		{"Acquire::Languages", "none"}, {"Acquire::Retries", "3"}, {"Acquire::Check-Valid-Until", "false"},
		{"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false"},
		{"Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled", "false"},
		{"APT::Sandbox::User", "root"}, {"Debug::NoLocking", "true"}, {"Binary::apt-get::APT::Keep-Downloaded-Packages", "true"},
		{"APT::Keep-Downloaded-Packages", "true"},
	} {
		fmt.Fprintf(&b, "%s %q;\n", kv[0], kv[1])
	}
	for _, hook := range []string{"APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success", "DPkg::Pre-Invoke", "DPkg::Post-Invoke", "DPkg::Pre-Install-Pkgs"} {
		fmt.Fprintf(&b, "#clear %s;\n", hook)
	}
	return b.String()
}

// keyring is where Debian keeps the keys of all its suites.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// sourceLines writes one line for each suite, on the mirrors the machine uses.
func sourceLines(ctx context.Context, suites []string) (string, error) {
	main, security, err := mirrors(ctx)
	if err != nil {
		return "", err
	}
	signed := ""
	if _, err := os.Stat(keyring); err == nil {
		signed = "[signed-by=" + keyring + "] "
	}
	var b strings.Builder
	for _, suite := range suites {
		uri := main
		if strings.HasSuffix(suite, "-security") {
			if uri = security; uri == "" {
				continue
			}
		}
		fmt.Fprintf(&b, "deb %s%s %s main\n", signed, uri, suite)
	}
	return b.String(), nil
}

var (
	mainMirror     = regexp.MustCompile(`^(https?|ftp|file|copy|mirror)\S*/debian/?$`)
	securityMirror = regexp.MustCompile(`^(https?|ftp|file|copy|mirror)\S*/debian-security/?$`)
)

// mirrors asks apt where this machine gets Debian from. security is "" where
// none is configured.
func mirrors(ctx context.Context) (main, security string, err error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)").Output()
	if err != nil {
		return "", "", fmt.Errorf("ask apt for its mirrors: %w", err)
	}
	for uri := range strings.FieldsSeq(string(out)) {
		if main == "" && mainMirror.MatchString(uri) {
			main = uri
		}
		if security == "" && securityMirror.MatchString(uri) {
			security = uri
		}
	}
	if main == "" {
		return "", "", errors.New("apt is configured with no mirror of Debian (an address ending in /debian)")
	}
	return main, security, nil
}

// Update fetches the indexes. A suite that the mirror does not carry is no
// error: what is not found later is. The text of apt's complaints is returned
// for that case.
func (s *State) Update(ctx context.Context) (complaints string, err error) {
	out, err := s.run(ctx, s.dir, "apt-get", "-q", "update")
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	var bad []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "E:") || strings.HasPrefix(line, "W:") || strings.HasPrefix(line, "Err:") {
			bad = append(bad, line)
		}
	}
	return strings.Join(bad, ""), nil
}

// Names returns the names of the packages that start with prefix.
func (s *State) Names(ctx context.Context, prefix string) ([]string, error) {
	out, err := s.run(ctx, s.dir, "apt-cache", "pkgnames", prefix)
	if err != nil {
		return nil, err
	}
	names := strings.Fields(out)
	slices.Sort(names)
	return names, nil
}

// Download fetches packages, without what they depend on, and returns the
// archives' paths.
func (s *State) Download(ctx context.Context, packages ...string) ([]string, error) {
	dir, err := os.MkdirTemp(s.path("debs"), "")
	if err != nil {
		return nil, err
	}
	if _, err := s.run(ctx, dir, "apt-get", append([]string{"-q", "download"}, packages...)...); err != nil {
		return nil, err
	}
	return archives(dir, len(packages))
}

// Install fetches packages of a suite with all of what they need that is not
// installed here, and installs nothing.
func (s *State) Install(ctx context.Context, suite string, packages ...string) ([]string, error) {
	args := []string{"-q", "-y", "--no-install-recommends", "--download-only", "--reinstall", "-t", suite, "install"}
	if _, err := s.run(ctx, s.dir, "apt-get", append(args, packages...)...); err != nil {
		return nil, err
	}
	return archives(s.path("cache/archives"), len(packages))
}

func archives(dir string, atLeast int) ([]string, error) {
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err == nil && len(debs) < atLeast {
		err = fmt.Errorf("apt fetched %d archives, want %d", len(debs), atLeast)
	}
	return debs, err
}

// Unpack extracts archives below dir.
func Unpack(ctx context.Context, dir string, debs ...string) error {
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	return nil
}

// run runs a program of apt with our configuration in dir.
func (s *State) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, append([]string{"-c", s.path("apt.conf")}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	fmt.Fprintf(s.log, "$ %s %s\n%s%s", name, strings.Join(args, " "), out.String(), errs.String())
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, args[0], err, errs.String())
	}
	return out.String() + errs.String(), err
}
