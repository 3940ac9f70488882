// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// Plugins say whose CNI plugins a node has.
type Plugins string

// Sluice's, or upstream's. BuildBefore makes Before: Sluice's of another build.
const (
	Sluice    Plugins = "sluice"
	Reference Plugins = "reference"
	Before    Plugins = "before"
)

// AllPlugins are those that clusters are made with.
var AllPlugins = []Plugins{Sluice, Reference}

// chained are the plugins of the network behind the interface plugin.
var chained = []string{"portmap", "bandwidth", "firewall"}

// preparePlugins builds both kinds and gives every node a copy, so that they can be swapped.
func (c *Cluster) preparePlugins() (err error) {
	set, err := testbin.Build(Agent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	names := append([]string{"bridge", "ptp", "host-local", "loopback"}, chained...)
	reference, err := testbin.Reference(context.Background(), names...)
	if err != nil {
		return err
	}
	return errors.Join(c.give(Sluice, set.Dir, programs()), c.give(Reference, reference, names))
}

// programs are those of Sluice that nodes get.
func programs() []string { return append(testbin.Programs(), Agent) }

// give gives every node a copy of programs, in a folder named by whose they are.
func (c *Cluster) give(whose Plugins, from string, names []string) error {
	for _, node := range c.Node {
		to := filepath.Join(node.Dir, string(whose))
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		for _, name := range names {
			if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// install puts the cluster's plugins and the configuration of its network onto a node. The configuration comes last: a runtime that sees
// it calls the plugins.
func (c *Cluster) install(ctx context.Context, i int, cidrs []string) error {
	if err := c.Install(ctx, i, c.Plugins); err != nil {
		return err
	}
	network := c.network(cidrs)
	if c.Chain == FlannelChain {
		if err := c.writeOn(ctx, i, "/run/flannel/subnet.env", flannelEnv(cidrs)); err != nil {
			return err
		}
		network = c.flannelNetwork(cidrs)
	}
	text, err := json.MarshalIndent(network, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(c.writeOn(ctx, i, "/etc/sluice/config.json", nodeConfig()), c.writeOn(ctx, i, "/etc/cni/net.d/10-pods.conflist", text))
}

// Install replaces the plugins of a node. Pods go on with what they have.
func (c *Cluster) Install(ctx context.Context, i int, p Plugins) error {
	node := c.Node[i]
	if p != Reference {
		_, err := node.Run(ctx, machine.Shared+"/"+string(p)+"/sluice", "install", "/opt/cni/bin")
		return err
	}
	// As a package manager does: a new file for each name, never the content of one that may be linked elsewhere.
	_, err := node.Shell(ctx, `cd `+machine.Shared+`/reference
for p in *; do cp "$p" "/opt/cni/bin/.$p.new"; mv "/opt/cni/bin/.$p.new" "/opt/cni/bin/$p"; done`)
	return err
}

// writeOn writes a file of a node in one step.
func (c *Cluster) writeOn(ctx context.Context, i int, path string, data []byte) error {
	_, err := c.Node[i].RunWith(ctx, string(data), "sh", "-c", `mkdir -p "$(dirname "$1")" && cat > "$1.new" && mv "$1.new" "$1"`, "write", path)
	return err
}

// nodeConfig has pods reach pods and Services by their own addresses, as upstream's ipMasq does not.
func nodeConfig() []byte {
	data, _ := json.Marshal(map[string]any{"nonMasqueradeCIDRs": strings.Split(list(Pods)+","+list(Services), ",")})
	return data
}

// subnets are the ranges of host-local.
func subnets(cidrs []string) (ranges [][]map[string]string) {
	for _, cidr := range cidrs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr}})
	}
	return ranges
}

// network is the configuration of the pods' network.
func (c *Cluster) network(cidrs []string) map[string]any {
	first := map[string]any{
		// Upstream's ipMasq knows no exemptions: pods of other nodes would see the node's address.
		"type": c.Main, "ipMasq": c.Plugins == Sluice,
		"ipam": map[string]any{"type": "host-local", "ranges": subnets(cidrs), "routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}},
	}
	if c.Main == "bridge" {
		first["bridge"], first["isGateway"], first["hairpinMode"] = "cni0", true, true
		// A node that joins again may get other pod CIDRs: its bridge has the gateway of those before.
		first["forceAddress"] = true
	}
	return map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": []map[string]any{
		first,
		{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
		{"type": "firewall"},
	}}
}

// flannelMTU leaves room for VXLAN, as flanneld does.
const flannelMTU = 1450

// flannelEnv is what flanneld tells its plugin. The first address of a pod CIDR is the bridge's.
func flannelEnv(cidrs []string) []byte {
	var b strings.Builder
	for f, cidr := range cidrs {
		p := netip.MustParsePrefix(cidr)
		fmt.Fprintf(&b, "FLANNEL_%[1]sNETWORK=%[2]s\nFLANNEL_%[1]sSUBNET=%[3]s/%[4]d\n", []string{"", "IPV6_"}[f], Pods[f], p.Addr().Next(), p.Bits())
	}
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n", flannelMTU)
	return []byte(b.String())
}

// flannelNetwork is the configuration that flannel's DaemonSet writes.
func (c *Cluster) flannelNetwork(cidrs []string) map[string]any {
	first := map[string]any{"hairpinMode": true, "isDefaultGateway": true}
	if c.Plugins == Sluice {
		first = map[string]any{"type": "flannel", "delegate": first}
	} else {
		first["type"], first["bridge"], first["isGateway"], first["ipMasq"], first["mtu"] = "bridge", "cni0", true, false, flannelMTU
		first["ipam"] = map[string]any{"type": "host-local", "ranges": subnets(cidrs), "routes": []map[string]string{{"dst": Pods[0].String()}, {"dst": Pods[1].String()}}}
	}
	return map[string]any{"cniVersion": "0.3.1", "name": "cbr0", "plugins": []map[string]any{
		first, {"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
	}}
}

// Resync has the operator's tool of a build bring that build's programs into force on a node.
func (c *Cluster) Resync(ctx context.Context, i int, build Plugins) error {
	_, err := c.Node[i].Run(ctx, machine.Shared+"/"+string(build)+"/sluice", "resync")
	return err
}

// Tool runs the operator's tool on a node and returns what it prints.
func (c *Cluster) Tool(ctx context.Context, i int, args ...string) (string, error) {
	out, err := c.Node[i].Run(ctx, append([]string{machine.Shared + "/sluice/sluice"}, args...)...)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return out, err
}
