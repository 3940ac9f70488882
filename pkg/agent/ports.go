// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/hostport"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

// tunnels returns the UDP ports that the devices of the routing mode use.
func tunnels(c *agentconf.Config) []nodeports.Tunnel {
	switch c.Routing {
	case agentconf.RoutingVXLAN:
		return []nodeports.Tunnel{{Port: c.VXLAN.Port, Device: c.VXLAN.Device}}
	case agentconf.RoutingWireGuard: // the device for the next key has the next port
		return []nodeports.Tunnel{{Port: c.WireGuard.Port, Device: c.WireGuard.Device}, {Port: c.WireGuard.Port + 1, Device: c.WireGuard.Device}}
	}
	return nil
}

// keepTunnels tells portmap which ports no pod may publish.
func keepTunnels(c *agentconf.Config) error {
	path := c.Paths.On(nodeports.TunnelsFile)
	list := tunnels(c)
	if len(list) == 0 {
		return file.Discard(path)
	}
	_, err := file.Update(path, nodeports.FormatTunnels(list), 0o644)
	return err
}

// watchPorts reports hostPorts that take traffic of the node, until ctx ends. Services and tunnels may come later than the pods.
func (a *agent) watchPorts(ctx context.Context) {
	for ctx.Err() == nil {
		problem, err := portProblem(a.Config)
		if err != nil {
			a.Log.Warn("look for hostPorts that take traffic of the node", log.Error(err))
		}
		if problem != "" {
			a.report.Problem("hostPorts", report.HostPortConflict, problem)
		} else if err == nil {
			a.report.Clear("hostPorts")
		}
		sleep(ctx, lookAgain+rand.N(lookAgain/4))
	}
}

// portProblem says which hostPorts take traffic of the node. hostPortConflicts: allow leaves those of its tunnels.
func portProblem(c *agentconf.Config) (string, error) {
	conf, err := nodeconf.Load(c.Paths.On(nodeconf.DefaultPath))
	if err != nil {
		return "", err
	}
	records, lerr := attachments.Open(c.Paths.On(attachments.DefaultDir)).List("")
	ports := nodeports.Recorded(records)
	var found []string
	var rest []hostport.Key
	for _, p := range ports {
		device := ""
		for _, t := range tunnels(c) {
			if t.Needs(p) {
				device = t.Device
			}
		}
		if device != "" {
			found = append(found, fmt.Sprintf("hostPort %s takes the packets between nodes of %s", p, device))
		} else {
			rest = append(rest, p)
		}
	}
	if conf.HostPortConflicts != nodeconf.ConflictsAllow {
		var conflicts []nodeports.Conflict
		conflicts, err = nodeports.Find(rest)
		for _, c := range conflicts {
			found = append(found, c.String())
		}
	}
	if len(found) == 0 {
		return "", errors.Join(lerr, err)
	}
	return fmt.Sprintf("%d hostPorts take traffic of the node; the first: %s", len(found), found[0]), errors.Join(lerr, err)
}
