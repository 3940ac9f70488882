// SPDX-License-Identifier: Apache-2.0

package binaries

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ReferenceVersion is the release of the reference plugins that tests compare with.
const ReferenceVersion = "v1.9.1"

// referencePackages are where the reference plugins are.
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

// ReferencePackage returns the directory of a plugin in the reference's module, "" of one that is not known here.
func ReferencePackage(name string) string { return referencePackages[name] }

// Reference returns a directory with the reference's own plugins of those names.
// Those that are missing are built by the go command, once, into the user's cache
// directory, which the benchmarks use too. It needs the module proxy the first
// time.
func Reference(names ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
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
		cmd := exec.Command("go", "install", "-trimpath", "-ldflags", "-s -w", "github.com/containernetworking/plugins/"+pkg+"@"+ReferenceVersion)
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the reference's %s: %w: %s", name, err, bytes.TrimSpace(out))
		}
	}
	return dir, nil
}
