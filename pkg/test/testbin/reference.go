// SPDX-License-Identifier: Apache-2.0

package testbin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ReferenceVersion is the release of upstream plugins that tests and benchmarks compare with.
const ReferenceVersion = "v1.9.1"

// ReferenceModule is what they are built from; buildVersion is the variable that its own build script sets.
const (
	ReferenceModule = "github.com/containernetworking/plugins"
	buildVersion    = ReferenceModule + "/pkg/utils/buildversion.BuildVersion"
)

// referencePackages are where upstream plugins are.
var referencePackages = map[string]string{
	"bridge":      "plugins/main/bridge",
	"ptp":         "plugins/main/ptp",
	"macvlan":     "plugins/main/macvlan",
	"tap":         "plugins/main/tap",
	"host-device": "plugins/main/host-device",
	"loopback":    "plugins/main/loopback",
	"dummy":       "plugins/main/dummy",
	"ipvlan":      "plugins/main/ipvlan",
	"vlan":        "plugins/main/vlan",
	"static":      "plugins/ipam/static",
	"tuning":      "plugins/meta/tuning",
	"sbr":         "plugins/meta/sbr",
	"vrf":         "plugins/meta/vrf",
	"host-local":  "plugins/ipam/host-local",
	"dhcp":        "plugins/ipam/dhcp",
	"portmap":     "plugins/meta/portmap",
	"firewall":    "plugins/meta/firewall",
	"bandwidth":   "plugins/meta/bandwidth",
}

// ReferencePackage returns the directory of a plugin in upstream's module, "" of one that is not known here.
func ReferencePackage(name string) string { return referencePackages[name] }

// EnvReference names the variable with a directory of upstream's plugins, for a place where they cannot be built.
const EnvReference = "SLUICE_TEST_REFERENCE"

// Reference returns a directory with upstream's own plugins of those names. Those that are missing are built by the go command,
// once, into the user's cache directory, as a release is: stripped, and with its version. That is said on stderr, and needs the
// module proxy. go install writes a file in one step, so what is interrupted leaves no half binary.
func Reference(ctx context.Context, names ...string) (string, error) {
	if dir := os.Getenv(EnvReference); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache for the reference plugins: %w", err)
	}
	dir := filepath.Join(cache, "sluice-bench", "plugins-"+ReferenceVersion)
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			continue
		}
		pkg, ok := referencePackages[name]
		if !ok {
			return "", fmt.Errorf("the reference's %s is not known here", name)
		}
		fmt.Fprintf(os.Stderr, "building the reference %s %s, once, into %s\n", name, ReferenceVersion, dir)
		cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags", "-s -w -X "+buildVersion+"="+ReferenceVersion, ReferenceModule+"/"+pkg+"@"+ReferenceVersion)
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the reference's %s: %w: %s", name, err, bytes.TrimSpace(out))
		}
	}
	return dir, nil
}
