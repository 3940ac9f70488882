// SPDX-License-Identifier: Apache-2.0

// Package garbage removes attachments whose pod neither the API server nor the runtime knows any more, by the CNI verb DEL with what libcni
// has kept of their ADD.
//
// In doubt it removes nothing: if one of the two cannot be asked, if an attachment is young or of another network, or if it was no ADD of
// Kubernetes. docs/dev/adr/0035-node-agent.md says why it does not call GC.
package garbage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/sluice-cni/sluice/pkg/log"
)

// Grace is the least age of an attachment that is removed. kubelet gives an ADD four minutes.
const Grace = 10 * time.Minute

// delTime bounds the DEL of one attachment.
const delTime = time.Minute

// Pods answers which pods the API server has on the node, by UID and by "namespace/name": a static pod has another UID there.
type Pods func(ctx context.Context) (map[string]bool, error)

// Sandboxes answers which sandboxes the runtime has, by ID.
type Sandboxes func(ctx context.Context) (map[string]bool, error)

// Collector removes the garbage of one network.
type Collector struct {
	Network   string
	CacheDir  string   // libcni's
	BinDirs   []string // of the plugins
	Pods      Pods
	Sandboxes Sandboxes
	Grace     time.Duration
	Log       *log.Logger
}

// Collect looks once. The error says who could not be asked, or which attachments could not be removed. removed are those that were.
func (c *Collector) Collect(ctx context.Context) (removed int, err error) {
	cni := libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, nil)
	// The attachments come first: a pod that is made from now on is in none of the lists below.
	old, err := c.old(cni)
	if err != nil || len(old) == 0 {
		return 0, err
	}
	sandboxes, err := c.Sandboxes(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask the runtime: %w", err)
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask the API server: %w", err)
	}
	// A runtime that knows one of these attachments is the one that made them.
	known := slices.ContainsFunc(old, func(a *libcni.NetworkAttachment) bool { return sandboxes[a.ContainerID] })
	var errs []error
	for _, a := range old {
		uid, name := podOf(a)
		if sandboxes[a.ContainerID] || pods[uid] || pods[name] {
			continue
		}
		_, statErr := os.Stat(a.NetNS)
		if statErr == nil && !known {
			errs = append(errs, fmt.Errorf("%s of %s: its network namespace %s exists, and the runtime knows no attachment of %s: is it the right one?", a.ContainerID, name, a.NetNS, c.Network))
			continue
		}
		if err := c.del(ctx, cni, a, statErr == nil); err != nil {
			errs = append(errs, fmt.Errorf("%s of %s: %w", a.ContainerID, name, err))
			continue
		}
		removed++
		c.Log.Info("removed an attachment without a pod", log.String(log.KeyContainerID, a.ContainerID), log.String("pod", name))
	}
	return removed, errors.Join(errs...)
}

// old returns the attachments of the network that may be garbage.
func (c *Collector) old(cni *libcni.CNIConfig) ([]*libcni.NetworkAttachment, error) {
	all, err := cni.GetCachedAttachments("")
	if err != nil {
		return nil, fmt.Errorf("read what libcni has kept: %w", err)
	}
	return slices.DeleteFunc(all, func(a *libcni.NetworkAttachment) bool {
		uid, name := podOf(a)
		if a.Network != c.Network || uid == "" || name == "/" {
			return true
		}
		// Its file has the name that libcni gives it, in each release so far. Without the file the age is not known.
		info, err := os.Stat(filepath.Join(c.CacheDir, "results", fmt.Sprintf("%s-%s-%s", a.Network, a.ContainerID, a.IfName)))
		return err != nil || time.Since(info.ModTime()) < c.Grace
	}), nil
}

// podOf returns the UID and "namespace/name" of the pod that the runtime named at ADD.
func podOf(a *libcni.NetworkAttachment) (uid, name string) {
	args := map[string]string{}
	for _, arg := range a.CniArgs {
		args[arg[0]] = arg[1]
	}
	return args["K8S_POD_UID"], args["K8S_POD_NAMESPACE"] + "/" + args["K8S_POD_NAME"]
}

func (c *Collector) del(ctx context.Context, cni *libcni.CNIConfig, a *libcni.NetworkAttachment, netns bool) error {
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return fmt.Errorf("the configuration of its ADD: %w", err)
	}
	rt := &libcni.RuntimeConf{ContainerID: a.ContainerID, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs, CacheDir: c.CacheDir}
	if netns {
		rt.NetNS = a.NetNS
	}
	ctx, cancel := context.WithTimeout(ctx, delTime)
	defer cancel()
	return cni.DelNetworkList(ctx, list, rt)
}
