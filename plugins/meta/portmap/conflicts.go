// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

// checkNode looks whether the ports of a request are the node's own. A hostPort would take their traffic, with any backend.
func (p *plugin) checkNode(a *cniskel.Args, r request) error {
	ports := make([]hostport.Key, 0, len(r.ports))
	for _, hp := range r.ports {
		ports = append(ports, hp.Key)
	}
	if err := p.checkTunnels(a, r, ports); err != nil {
		return err
	}
	if p.Conflicts == nil {
		return nil
	}
	policy, err := p.Conflicts(a)
	if err != nil || policy == nodeconf.ConflictsAllow {
		return err
	}
	conflicts, err := nodeports.Find(ports)
	refuse := policy == nodeconf.ConflictsRefuse
	switch {
	case err != nil && refuse:
		return cnierr.Wrap(cnierr.CodeKernel, err, "look for sockets of the node on the hostPorts")
	case err != nil:
		a.Log.Info("cannot look for sockets of the node on the hostPorts", log.Error(err))
	}
	for _, c := range conflicts {
		if refuse {
			return cnierr.Config(r.keyOf(c.Key), c.Port, fmt.Sprintf("a socket of the node waits for it at %s, and hostPortConflicts of the node configuration is %s", c.Socket, policy))
		}
		a.Log.Warn(c.String())
	}
	return nil
}

// checkTunnels refuses the ports that the node agent's devices use for packets between nodes.
func (p *plugin) checkTunnels(a *cniskel.Args, r request, ports []hostport.Key) error {
	tunnels, err := nodeports.ReadTunnels(p.TunnelsFile)
	if err != nil {
		a.Log.Warn("cannot look for tunnels on the hostPorts", log.Error(err))
	}
	for _, t := range tunnels {
		if i := slices.IndexFunc(ports, t.Needs); i >= 0 {
			return cnierr.Config(r.keyOf(ports[i]), ports[i].Port, "is the UDP port of "+t.Device+", which carries packets of pods between nodes")
		}
	}
	return nil
}

// keyOf names the hostPort of the mapping that a port comes from.
func (s *settings) keyOf(p hostport.Key) string {
	i := slices.IndexFunc(s.mappings, func(families []hostport.Mapping) bool {
		return slices.ContainsFunc(families, func(m hostport.Mapping) bool {
			return m.Key == p
		})
	})
	return keyPath(i, "hostPort")
}
