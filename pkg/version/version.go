// SPDX-License-Identifier: Apache-2.0

// Package version holds the build's version string and the CNI versions that
// the plugins serve. It imports none of our packages.
package version

import (
	"strings"

	"github.com/containernetworking/cni/pkg/version"
)

// build is set with -ldflags "-X github.com/sluice-cni/sluice/pkg/version.build=v1.2.3".
var build = "dev"

// String returns the version of this build, "dev" when the build did not say.
func String() string { return build }

// About is the line a plugin prints when it is run by hand.
func About(plugin string) string {
	return "Sluice CNI plugin " + plugin + " " + build
}

// CNI lists every CNI specification version the plugins serve, oldest first.
func CNI() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// Since returns the plugin information for CNI versions from min on
// ("0.4.0" for firewall). A min that is not in CNI() is a programmer's error
// and panics.
func Since(min string) version.PluginInfo {
	all := CNI()
	for i, v := range all {
		if v == min {
			return version.PluginSupports(all[i:]...)
		}
	}
	panic("no CNI version " + min + " in " + strings.Join(all, " "))
}

// All is Since the first version.
func All() version.PluginInfo { return Since("0.1.0") }
