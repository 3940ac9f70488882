// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// enumValue is a flag with a fixed set of values.
type enumValue struct {
	to     *string
	values []string
}

func (c enumValue) String() string {
	if c.to == nil {
		return ""
	}
	return *c.to
}

func (c enumValue) Type() string { return "string" }

func (c enumValue) Set(v string) error {
	v = strings.ToLower(v)
	if !slices.Contains(c.values, v) {
		return fmt.Errorf("must be %s", orList(c.values))
	}
	*c.to = v
	return nil
}

func orList(values []string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// choiceFlag adds a flag that takes one of values, with completion.
func choiceFlag(c *cobra.Command, to *string, name, usage string, values []string, preset string) {
	*to = preset
	c.Flags().Var(enumValue{to, values}, name, usage+": "+orList(values))
	must(c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// flags adds --network and --container, completed from the records.
func (f *ownerFilter) flags(a *app, c *cobra.Command) {
	c.Flags().StringVar(&f.network, "network", "", "only attachments of this `network`")
	c.Flags().StringVar(&f.container, "container", "", "only attachments of the container whose ID begins with `id`")
	complete := func(field func(attachments.ID) string) cobra.CompletionFunc {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			records, _ := a.node.Records() // what can be read is better than nothing
			var values []string
			for _, r := range records {
				if v := field(r.ID); v != "" {
					values = append(values, v)
				}
			}
			slices.Sort(values)
			return slices.Compact(values), cobra.ShellCompDirectiveNoFileComp
		}
	}
	must(c.RegisterFlagCompletionFunc("network", complete(func(r attachments.ID) string { return r.Network })))
	must(c.RegisterFlagCompletionFunc("container", complete(func(r attachments.ID) string { return r.ContainerID })))
}
