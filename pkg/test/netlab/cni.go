// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// CacheDir is where the node's runtime keeps the results of ADD.
const CacheDir = "/var/lib/cni"

// CNIOptions configure a Runtime.
type CNIOptions struct {
	// Path lists the directories with plugin binaries, as CNI_PATH does.
	// Relative ones are taken from the caller's working directory.
	Path []string
	// Conflist is the network configuration list, JSON.
	Conflist []byte
	// Stderr gets what the plugins write there; nil discards it. It is used by
	// concurrent calls at once.
	Stderr io.Writer
	// Exec replaces the way plugins are started, to count or time them. nil
	// means libcni's own.
	Exec invoke.Exec
}

// Runtime calls the plugins of one network as a container runtime does:
// through libcni, from inside the node.
type Runtime struct {
	List *libcni.NetworkConfigList

	node *Node
	cni  *libcni.CNIConfig
}

// Attachment names one interface of one container.
type Attachment struct {
	ContainerID string
	// NetNS is the path passed as CNI_NETNS: Pod.Path, or anything else.
	NetNS string
	// IfName, "" for eth0.
	IfName string
	// Args become CNI_ARGS.
	Args [][2]string
	// Capabilities become runtimeConfig where a plugin declares them, such as
	// {"portMappings": []map[string]any{{...}}}.
	Capabilities map[string]any
}

// CNI loads a configuration list and returns a runtime for it.
func (n *Node) CNI(o CNIOptions) (*Runtime, error) {
	list, err := libcni.NetworkConfFromBytes(o.Conflist)
	if err != nil {
		return nil, fmt.Errorf("load conflist: %w", err)
	}
	path := make([]string, len(o.Path))
	for i, p := range o.Path {
		if path[i], err = filepath.Abs(p); err != nil {
			return nil, err
		}
	}
	if o.Exec == nil {
		o.Exec = NewExec(o.Stderr)
	}
	return &Runtime{List: list, node: n, cni: libcni.NewCNIConfigWithCacheDir(path, CacheDir, o.Exec)}, nil
}

// NewExec returns libcni's own way of starting plugins, with their stderr going
// to w (nil discards it).
func NewExec(w io.Writer) invoke.Exec {
	if w == nil {
		w = io.Discard
	}
	return &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: w}, PluginDecoder: version.PluginDecoder{}}
}

// Add runs ADD of every plugin in order and returns the last result.
func (r *Runtime) Add(ctx context.Context, a Attachment) (res types.Result, err error) {
	err = r.node.Do(func() error {
		res, err = r.cni.AddNetworkList(ctx, r.List, a.conf())
		return err
	})
	return res, err
}

// Del runs DEL of every plugin in reverse order.
func (r *Runtime) Del(ctx context.Context, a Attachment) error {
	return r.node.Do(func() error { return r.cni.DelNetworkList(ctx, r.List, a.conf()) })
}

// Check runs CHECK of every plugin in order.
func (r *Runtime) Check(ctx context.Context, a Attachment) error {
	return r.node.Do(func() error { return r.cni.CheckNetworkList(ctx, r.List, a.conf()) })
}

// GC tells every plugin which attachments are still valid. libcni first DELs
// the cached ones that are not.
func (r *Runtime) GC(ctx context.Context, valid []types.GCAttachment) error {
	return r.node.Do(func() error {
		return r.cni.GCNetworkList(ctx, r.List, &libcni.GCArgs{ValidAttachments: valid})
	})
}

// Status asks every plugin whether an ADD would work.
func (r *Runtime) Status(ctx context.Context) error {
	return r.node.Do(func() error { return r.cni.GetStatusNetworkList(ctx, r.List) })
}

// ForgetCache removes the runtime's memory of an attachment, so that DEL comes
// without prevResult and GC does not know of it.
func (r *Runtime) ForgetCache(a Attachment) error {
	return r.node.Do(func() error {
		return os.Remove(filepath.Join(CacheDir, "results", r.List.Name+"-"+a.ContainerID+"-"+a.conf().IfName))
	})
}

func (a Attachment) conf() *libcni.RuntimeConf {
	if a.IfName == "" {
		a.IfName = "eth0"
	}
	return &libcni.RuntimeConf{
		ContainerID:    a.ContainerID,
		NetNS:          a.NetNS,
		IfName:         a.IfName,
		Args:           a.Args,
		CapabilityArgs: a.Capabilities,
	}
}
