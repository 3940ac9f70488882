// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/sluice-cni/sluice/pkg/agent/names"
	"github.com/sluice-cni/sluice/pkg/agent/observer"
	"github.com/sluice-cni/sluice/pkg/version"
)

// observe are the options of the server of Hubble's API. The connections come from the command, which is a process of its own, as those of
// /metrics do (ADR 47).
func (a *agent) observe() observer.Options {
	c := a.Config.Observe
	cache := names.New(a.client, a.nodeAddresses, a.Log)
	return observer.Options{
		Node: a.Node, Version: "sluice " + version.String(), Socket: a.Config.Paths.On(c.Socket), Address: c.Address,
		TLS:     observer.Files{Cert: c.TLS.Cert, Key: c.TLS.Key, ClientCA: c.TLS.ClientCA},
		Program: filepath.Join(a.Programs, "sluice"), Rate: int(c.MaxRate), Sample: uint64(c.Sample),
		Use: cache.Use, Names: cache, Peers: a.peers, Log: a.Log,
	}
}

// nodeAddresses returns the addresses of this node and of the others.
func (a *agent) nodeAddresses() (self, others []netip.Addr) {
	v := a.watcher.View()
	for _, n := range v.Others {
		others = append(others, n.InternalIPs...)
	}
	return v.Self.InternalIPs, others
}

// peers are the nodes of the cluster, which all have this server at the same port. Without an address this node is the only one.
func (a *agent) peers() []observer.Peer {
	c := a.Config.Observe
	at, err := netip.ParseAddrPort(c.Address)
	if err != nil {
		return []observer.Peer{{Name: a.Node, Address: "unix://" + c.Socket}}
	}
	v := a.watcher.View()
	v.Self.Name = a.Node
	var out []observer.Peer
	for _, n := range append(v.Others, v.Self) {
		if len(n.InternalIPs) > 0 {
			out = append(out, observer.Peer{Name: n.Name, Address: net.JoinHostPort(n.InternalIPs[0].String(), strconv.Itoa(int(at.Port())))})
		}
	}
	return out
}
