// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ReferenceVersion is the release that Sluice is compared with.
const ReferenceVersion = "v1.9.1"

// versionVariable is what the reference's own build script sets.
const versionVariable = "github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion"

// referencePackage returns the main package of a plugin.
func referencePackage(plugin string) string {
	family := "main"
	switch plugin {
	case "host-local":
		family = "ipam"
	case "portmap", "firewall", "bandwidth":
		family = "meta"
	}
	return "github.com/containernetworking/plugins/plugins/" + family + "/" + plugin
}

// ReferenceSuite takes the reference's plugins from dir, or, when dir is "", from
// the user's cache directory, where the go command first builds what is
// missing. Progress goes to log.
func ReferenceSuite(ctx context.Context, dir string, plugins []string, log io.Writer) (Suite, error) {
	s := Suite{Name: Reference, BinDir: dir}
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return s, fmt.Errorf("cache for the reference plugins: %w", err)
		}
		s.BinDir = filepath.Join(cache, "sluice-bench", "plugins-"+ReferenceVersion)
		if err := installReference(ctx, s.BinDir, plugins, log); err != nil {
			return s, err
		}
	}
	abs, err := filepath.Abs(s.BinDir)
	if err != nil {
		return s, err
	}
	s.BinDir = abs
	if err := s.check(plugins); err != nil {
		return s, err
	}
	s.Version = about(filepath.Join(s.BinDir, plugins[0]))
	return s, nil
}

// installReference builds the missing ones into dir. go install writes the
// file in one step, so an interrupted run leaves no half binary.
func installReference(ctx context.Context, dir string, plugins []string, log io.Writer) error {
	for _, name := range plugins {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			continue
		}
		fmt.Fprintf(log, "building the reference %s %s, once, into %s\n", name, ReferenceVersion, dir)
		// Stripped as Sluice is, and with the version a released build carries.
		cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags", "-s -w -X "+versionVariable+"="+ReferenceVersion,
			referencePackage(name)+"@"+ReferenceVersion)
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go install %s (offline? -reference-bin takes a directory with the plugins, -peers leaves the reference out): %w: %s",
				name, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// ReferencePlugin is ReferenceSuite for one plugin: it returns its path.
func ReferencePlugin(ctx context.Context, dir, name string, log io.Writer) (string, error) {
	if dir != "" {
		return filepath.Abs(filepath.Join(dir, name))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache for the reference plugins: %w", err)
	}
	dir = filepath.Join(cache, "sluice-bench", "plugins-"+ReferenceVersion)
	return filepath.Join(dir, name), installReference(ctx, dir, []string{name}, log)
}

// about returns the first line a plugin prints when no CNI_COMMAND is set, ""
// if it says nothing.
func about(plugin string) string {
	cmd := exec.Command(plugin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	_ = cmd.Run() // the reference exits 0; what it prints is all that matters
	line, _, _ := strings.Cut(errOut.String(), "\n")
	return strings.TrimSpace(line)
}
