// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// ReferenceSuite takes upstream's plugins from dir, or, when dir is "", from
// the user's cache directory, where the go command first builds what is missing.
// They are laid into copies as Sluice lays its own: how a file was written tells in
// the time that a process takes to start from it.
func ReferenceSuite(ctx context.Context, dir, copies string, plugins []string) (Suite, error) {
	s := Suite{Name: Reference, BinDir: copies}
	dir, err := referenceDir(ctx, dir, plugins...)
	if err != nil {
		return s, err
	}
	sources := make([]install.Source, 0, len(plugins)+1)
	for _, p := range plugins {
		sources = append(sources, install.Source{Path: filepath.Join(dir, p)})
	}
	if helper := filepath.Join(dir, helperproc.Name); exists(helper) { // dir is another build of Sluice, to compare with
		sources = append(sources, install.Source{Path: helper})
	}
	if _, err := install.Install(ctx, copies, install.Options{}, sources...); err != nil {
		return s, fmt.Errorf("peer %s: %w", Reference, err)
	}
	s.Version = about(filepath.Join(s.BinDir, plugins[0]))
	return s, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ReferencePlugin is ReferenceSuite for one plugin: it returns its path.
func ReferencePlugin(ctx context.Context, dir, name string) (string, error) {
	dir, err := referenceDir(ctx, dir, name)
	return filepath.Join(dir, name), err
}

func referenceDir(ctx context.Context, dir string, plugins ...string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := testbin.Reference(ctx, plugins...)
	if err != nil {
		return "", fmt.Errorf("%w (offline? -reference-bin takes a directory with the plugins, -peers leaves the reference out)", err)
	}
	return dir, nil
}

// about returns the first line a plugin prints when no CNI_COMMAND is set, ""
// if it says nothing.
func about(plugin string) string {
	cmd := exec.Command(plugin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	_ = cmd.Run() // upstream exits 0; what it prints is all that matters
	line, _, _ := strings.Cut(errOut.String(), "\n")
	return strings.TrimSpace(line)
}
