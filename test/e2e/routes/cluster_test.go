// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/agent/routes"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// member is a node of the cluster with the agent's part of it.
type member struct {
	*e2etest.World
	facts  routes.Node
	main   string // the plugin of its pods
	router routes.Router
	state  string
}

// cluster is nodes on one segment, each with Sluice.
type cluster struct {
	t       *testing.T
	lab     *netlab.Cluster
	members []*member
}

// newCluster makes a node for each main plugin. Its pods are in 10.1.<i>.0/24 and fd00:1:0:<i>::/64.
func newCluster(t *testing.T, plugins ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, lab: netlab.NewClusterT(t, len(plugins))}
	for i, main := range plugins {
		n := c.lab.Nodes[i]
		m := &member{
			World: &e2etest.World{Lab: &netlab.Lab{Node: n}, T: t, Stderr: &e2etest.LogBuffer{}}, main: main, state: t.TempDir(),
			facts: routes.Node{Name: n.Name, PodCIDRs: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:1:0:%x::/64", i)),
			}},
		}
		for _, p := range netlab.ClusterNode(i) {
			m.facts.InternalIPs = append(m.facts.InternalIPs, p.Addr())
		}
		m.Configure(`{"nonMasqueradeCIDRs": ["10.1.0.0/16", "fd00:1::/48"]}`)
		t.Cleanup(func() {
			if t.Failed() && m.Stderr.String() != "" {
				t.Logf("%s: the plugins' stderr:\n%s", n.Name, m.Stderr)
			}
		})
		c.members = append(c.members, m)
	}
	return c
}

// use takes all nodes to a mode, one after the other.
func (c *cluster) use(mode string) {
	c.t.Helper()
	for _, m := range c.members {
		r, err := routes.New(mode, routes.Config{StateDir: m.state}, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		m.router = r
	}
	c.sync()
}

// sync runs the routers until no node has anything new to say.
func (c *cluster) sync() {
	c.t.Helper()
	e2etest.Eventually(c.t, 20*time.Second, func() error {
		var firstErr error
		for _, m := range c.members {
			w, err := m.sync(c.others(m))
			if err != nil && firstErr == nil {
				firstErr = err
			}
			was := maps.Clone(m.facts.Annotations)
			m.apply(w)
			if !maps.Equal(was, m.facts.Annotations) && firstErr == nil {
				firstErr = fmt.Errorf("%s has new annotations", m.facts.Name)
			}
			if w.Resync {
				e2etest.MustRun(c.t, m.Node, e2etest.Programs.Path("sluice")+" resync")
			}
		}
		return firstErr
	})
}

func (c *cluster) others(m *member) (nodes []routes.Node) {
	for _, o := range c.members {
		if o != m {
			nodes = append(nodes, o.facts)
		}
	}
	return nodes
}

func (m *member) sync(others []routes.Node) (w routes.Wanted, err error) {
	_ = m.Node.Do(func() error {
		w, err = m.router.Sync(context.Background(), m.facts, others)
		return nil
	})
	return w, err
}

func (m *member) apply(w routes.Wanted) {
	if m.facts.Annotations == nil {
		m.facts.Annotations = map[string]string{}
	}
	for k, v := range w.SelfAnnotations {
		if m.facts.Annotations[k] = v; v == "" {
			delete(m.facts.Annotations, k)
		}
	}
}

// network is the conflist that the agent writes. An mtu of 0 is the plugin's default.
func (m *member) network(mtu int) e2etest.Network {
	n := e2etest.Network{Main: m.main, Extra: e2etest.Attributes{}}
	for _, p := range m.facts.PodCIDRs {
		n.Subnets = append(n.Subnets, p.String())
	}
	if mtu > 0 {
		n.Extra["mtu"] = mtu
	}
	return n
}

// leftovers are the routes and devices of the agent on a node.
func (m *member) leftovers() string {
	out := m.Node.IPT(m.T, "-4 route show table all proto 115") + m.Node.IPT(m.T, "-6 route show table all proto 115")
	for _, kind := range []string{"vxlan", "wireguard"} {
		out += m.Node.IPT(m.T, "link show type "+kind)
	}
	return out
}

// remove takes the agent's part off a node, and removes the node from the cluster.
func (c *cluster) remove(m *member) {
	c.t.Helper()
	m.DoOnNode(func() error { return m.router.Remove(context.Background()) })
	c.members = slices.DeleteFunc(c.members, func(o *member) bool { return o == m })
}
