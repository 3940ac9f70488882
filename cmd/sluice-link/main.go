// SPDX-License-Identifier: Apache-2.0

// Command sluice-link is those plugins of sluice-cni once more that need no BPF: a smaller program, which starts faster.
// "sluice install" lays it under their names.
package main

import (
	"github.com/sluice-cni/sluice/cmd/internal/multicall"
	"github.com/sluice-cni/sluice/pkg/install"
)

func main() { program().Main() }

func program() multicall.Program {
	return multicall.Program{Name: install.Link, Plugin: multicall.Light}
}
