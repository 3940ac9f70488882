// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/version"
)

// versionView is what "version -o json" prints.
type versionView struct {
	Version     string   `json:"version"`
	Go          string   `json:"go"`
	Platform    string   `json:"platform"`
	MapLayout   int      `json:"map_layout"`
	CNIVersions []string `json:"cni_versions"`
	Plugins     []string `json:"plugins"`
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this build",
		Example: `  sluice version -o json`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionView{
				Version: version.String(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
				MapLayout: loader.PinVersion, CNIVersions: version.CNI(), Plugins: install.Plugins(),
			}
			return a.print(v, func() error {
				return a.say("sluice %s (%s, %s, map layout %d)\nCNI      %s\nplugins  %s",
					v.Version, v.Go, v.Platform, v.MapLayout, strings.Join(v.CNIVersions, " "), strings.Join(v.Plugins, " "))
			})
		},
	}
}
