// SPDX-License-Identifier: Apache-2.0

// Package tooltest has a node for the tests of netfilter's packages: programs that
// answer as told, and a kernel with the tables that a test wants. It starts
// nothing and sees nothing of the machine.
package tooltest

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/hostport"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Tools are programs that answer as told.
type Tools struct {
	Installed map[string]bool
	Answers   map[string]string // by the program's name
	Fail      map[string]error  // by the program's name, each time it runs
	Runs      []string          // what was run, with its input
	// BeforeSave is called before each program that reads a table; may be nil.
	BeforeSave func()
}

var _ tool.Runner = (*Tools)(nil)

// NewTools returns tools with every program of netfilter installed.
func NewTools() *Tools {
	f := &Tools{Installed: map[string]bool{"nft": true}, Answers: map[string]string{}, Fail: map[string]error{}}
	for _, v := range []string{"-nft", "-legacy", ""} {
		for _, verb := range []string{"-save", "-restore"} {
			f.Installed["iptables"+v+verb], f.Installed["ip6tables"+v+verb] = true, true
		}
	}
	return f
}

// LookPath finds the programs that are installed.
func (f *Tools) LookPath(name string) (string, error) {
	if f.Installed[name] {
		return name, nil
	}
	return "", exec.ErrNotFound
}

// Run answers.
func (f *Tools) Run(_ context.Context, stdin, name string, args ...string) (string, error) {
	if f.BeforeSave != nil && strings.HasSuffix(name, "-save") {
		f.BeforeSave()
	}
	f.Runs = append(f.Runs, strings.TrimSpace(name+" "+strings.Join(args, " ")+"\n"+stdin))
	if err := f.Fail[name]; err != nil {
		return "", err
	}
	return f.Answers[name], nil
}

// Kernel has these chains ("2 nat CNI-X", the number is the family's) and legacy
// tables.
type Kernel struct {
	Chains map[string]bool
	Legacy []string
	NFT    []rtnl.NFTChain
}

var _ tool.Kernel = Kernel{}

// HasNFTChain looks into Chains.
func (k Kernel) HasNFTChain(family int, table, chain string) (bool, error) {
	return k.Chains[fmt.Sprint(family, " ", table, " ", chain)], nil
}

// NFTChains returns NFT.
func (k Kernel) NFTChains() ([]rtnl.NFTChain, error) { return k.NFT, nil }

// LegacyTables returns Legacy.
func (k Kernel) LegacyTables(bool) ([]string, error) { return k.Legacy, nil }

// Env returns the node, with a run directory of its own.
func Env(t *testing.T, f *Tools, k Kernel) tool.Env {
	return tool.Env{Runner: f, Kernel: k, RunDir: t.TempDir(), Log: log.NewNop()}
}

// Mapping is a hostPort, in words that fit a table of cases.
func Mapping(host string, proto uint8, hostPort uint16, pod string, podPort uint16) netfilter.Mapping {
	return netfilter.Mapping{Key: hostport.Key{HostIP: netip.MustParseAddr(host), Proto: proto, Port: hostPort}, PodIP: netip.MustParseAddr(pod), PodPort: podPort}
}
