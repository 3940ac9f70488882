// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/agent/atomicfile"
	"github.com/sluice-cni/sluice/pkg/agent/health"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/log"
)

// ready returns what keeps this node from networking pods, for /readyz. Problems of the API server are not among it, once it has answered:
// the node works without.
func (a *agent) ready(ctx context.Context) []string {
	if !a.watcher.Synced() {
		return []string{"nodes: the API server has not answered since the agent started"}
	}
	a.mu.Lock()
	settled := a.settled
	a.mu.Unlock()
	var lines []string
	if !settled {
		if lines = a.report.Problems(); len(lines) == 0 {
			lines = []string{"agent: not done yet"}
		}
	}
	if !a.installer.Intact() {
		lines = append(lines, "install: plugins are missing or foreign")
	}
	path := filepath.Join(a.Config.Paths.Conf(), a.Config.Network.File)
	content, err := atomicfile.Read(path)
	switch {
	case err != nil:
		return append(lines, "network: "+err.Error())
	case content == nil:
		return append(lines, "network: "+path+" is missing")
	}
	if err := health.Status(ctx, content, []string{a.Config.Paths.BinDir}); err != nil {
		lines = append(lines, "STATUS: "+err.Error())
	}
	return lines
}

// collect looks for garbage until ctx ends, the first time after one interval: then kubelet and the runtime have started too.
func (a *agent) collect(ctx context.Context) {
	interval := time.Duration(a.Config.Garbage.Interval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval + rand.N(interval/10+1)): //nolint:gosec // jitter, so that nodes do not ask at one time
		}
		removed, err := a.collector.Collect(ctx)
		a.report.Count(report.GarbageRemoved, removed)
		a.step("garbage", report.GarbageFailed, err)
	}
}

// unloadTime bounds a run of "sluice unload".
const unloadTime = time.Minute

// ErrPodsLeft says that Remove left the plugins, because attached pods need them for their DEL.
var ErrPodsLeft = errors.New("attached pods need the plugins for their DEL")

// Remove takes off the node what Run has put there: the network's configuration first, so that no pod starts, then routes and devices,
// then the exemptions from masquerade, the datapath, and the plugins last. Each step is tried. With attached pods the datapath and the plugins
// stay and the error wraps ErrPodsLeft. force removes the plugins then too, and a denylist that is in the datapath. pods is how many there are.
func Remove(ctx context.Context, o Options, pods int, force bool) error {
	c := o.Config
	path := filepath.Join(c.Paths.Conf(), c.Network.File)
	if err := atomicfile.Remove(path); err != nil {
		return err // pods would start on a node without routes
	}
	o.Log.Info("network removed", log.String(log.KeyPath, path))
	var errs []error
	router, err := newRouter(o)
	if err == nil {
		err = router.Remove(ctx)
	}
	errs = append(errs, err, newExempt(o).Remove(ctx))
	if access := newAccess(o, nil); access != nil && pods == 0 {
		errs = append(errs, access.Remove())
	}
	if pods > 0 && !force {
		return errors.Join(append(errs, fmt.Errorf("%s: %d %w; drain the node and call again, or use --force", c.Paths.BinDir, pods, ErrPodsLeft))...)
	}
	if pods == 0 {
		errs = append(errs, unload(ctx, o.Programs, force))
	}
	removed, err := install.Remove(ctx, c.Paths.Bin(), install.Options{RuntimeDir: c.Paths.BinDir})
	o.Log.Info("plugins removed", log.Any("names", removed))
	return errors.Join(append(errs, err)...)
}

// unload takes the programs out of the kernel, if there are some.
func unload(ctx context.Context, programs string, force bool) error {
	args := []string{"unload"}
	if force {
		args = append(args, "--force")
	}
	ctx, cancel := context.WithTimeout(ctx, unloadTime)
	defer cancel()
	tool := filepath.Join(programs, "sluice")
	if out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
