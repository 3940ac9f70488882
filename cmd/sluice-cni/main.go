// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is all CNI plugins but dhcp in one binary. The name it is started under (argv[0]) picks the plugin;
// "sluice install" lays it under the names of those that no smaller program is, see package install.
package main

import (
	"github.com/sluice-cni/sluice/cmd/internal/multicall"
	"github.com/sluice-cni/sluice/pkg/install"
)

func main() { program().Main() }

func program() multicall.Program { return multicall.Program{Name: install.Multicall, Plugin: plugin} }
