// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
)

// completePods completes up to n arguments, or a flag with 0, by pods: the beginnings of container IDs, and words.
func (a *app) completePods(n int, words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if n > 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		records, _ := a.node.Records() // what can be read is better than nothing
		out := append([]string{}, words...)
		for _, r := range records {
			out = append(out, cobra.CompletionWithDesc(shortID(r.ContainerID, false), visible(cmp.Or(r.Network, "?")+"/"+r.IfName)))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeAddresses completes a flag by the addresses of pods.
func (a *app) completeAddresses(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	_ = a.withDatapath(c.Context(), func(dp loader.Interface) error { // without one there is nothing to complete
		endpoints, err := dp.Endpoints(c.Context())
		names := a.owners()
		for _, e := range endpoints {
			for _, p := range e.Addrs {
				out = append(out, cobra.CompletionWithDesc(p.Addr().String(), visible(names.view(e.Owner).text(false))))
			}
		}
		return err
	}, func() error { return nil })
	return out, cobra.ShellCompDirectiveNoFileComp
}
