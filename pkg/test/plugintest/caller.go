// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Caller runs a chained plugin with a real attachment store, without a node: the
// plugin gets its datapath and its namespaces from fakes. The test sets Plugin.
type Caller struct {
	T       testing.TB
	Type    string // of the plugin, in the configuration
	Records *attachments.Dir
	Plugin  *cniskel.Plugin
}

// NewCaller returns a Caller for a plugin on dp, all of whose handles must be
// closed when the test ends.
func NewCaller(t testing.TB, kind string, dp *loadertest.Datapath) *Caller {
	dp.WantClosed(t)
	return &Caller{T: t, Type: kind, Records: attachments.Open(t.TempDir())}
}

// Openers are the two ways to open dp, as a plugin wants them.
func Openers(dp *loadertest.Datapath) (open, existing func(context.Context, *cniskel.Args) (loader.Interface, error)) {
	by := func(load bool) func(context.Context, *cniskel.Args) (loader.Interface, error) {
		return func(context.Context, *cniskel.Args) (loader.Interface, error) { return dp.Open(load) }
	}
	return by(true), by(false)
}

// Resolve stands for loader.Resolve.
func Resolve(_ context.Context, netns, _ string) (loader.Endpoint, error) {
	if netns == "" {
		return loader.Endpoint{}, errors.New("no namespace")
	}
	return loader.Endpoint{HostIfindex: 7, HostIfName: "veth0", MTU: 1500}, nil
}

// Ref names the attachment of a container on the network of the tests.
func Ref(id string) attachments.ID {
	return attachments.ID{Network: "net", ContainerID: id, IfName: "eth0"}
}

// Owner is how the datapath names it.
func Owner(id string) uint64 { return Ref(id).Owner() }

// Args are those of a call for a container.
func (n *Caller) Args(id string, stdin []byte) *cniskel.Args {
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{ContainerID: id, IfName: "eth0", Netns: "/run/netns/" + id, StdinData: stdin},
		Log:     log.NewNop(),
	}
}

// Add runs ADD.
func (n *Caller) Add(id string, stdin []byte) (types.Result, error) {
	return n.Plugin.Add(n.T.Context(), n.Args(id, stdin))
}

// MustAdd runs an ADD that has to succeed.
func (n *Caller) MustAdd(id string, stdin []byte) types.Result {
	n.T.Helper()
	res, err := n.Add(id, stdin)
	if err != nil {
		n.T.Fatalf("ADD %s: %v", id, err)
	}
	return res
}

// Del is a DEL as poor as a runtime can make it: no namespace, no prevResult,
// no runtimeConfig.
func (n *Caller) Del(id string) error {
	a := n.Args(id, fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","type":%q}`, n.Type))
	a.Netns = ""
	return n.Plugin.Del(n.T.Context(), a)
}

// MustDel runs a DEL that has to succeed.
func (n *Caller) MustDel(id string) {
	n.T.Helper()
	if err := n.Del(id); err != nil {
		n.T.Fatalf("DEL %s: %v", id, err)
	}
}

// RecordCount is the number of attachments on record.
func (n *Caller) RecordCount() int {
	n.T.Helper()
	records, err := n.Records.List("")
	Must(n.T, err)
	return len(records)
}

// WantCode wants an error of that CNI code.
func (n *Caller) WantCode(err error, code uint) {
	n.T.Helper()
	WantCode(n.T, err, code)
}

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
