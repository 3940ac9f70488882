// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/pkg/agent/health"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/file"
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
	content, err := file.Read(path)
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
		case <-time.After(interval + rand.N(interval/10+1)): // jitter, so that nodes do not ask at one time
		}
		removed, err := a.collector.Collect(ctx)
		a.report.Count(report.GarbageRemoved, removed)
		a.step("garbage", report.GarbageFailed, err)
	}
}
