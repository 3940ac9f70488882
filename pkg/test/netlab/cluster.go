// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Cluster is several nodes on one Ethernet segment. Each node has eth0, and a default route to the segment's router, which
// is the switch itself. The caller must Close it.
type Cluster struct {
	Nodes []*Node
	// Switch is the namespace with the bridge br0 that joins the nodes.
	Switch *NS
}

// ClusterSwitch are the addresses of the switch.
func ClusterSwitch() []netip.Prefix { return clusterAddrs(254) }

// ClusterNode are the addresses of the i-th node, from 0: 192.0.2.1 and 2001:db8:1::1 for the first.
func ClusterNode(i int) []netip.Prefix { return clusterAddrs(i + 1) }

func clusterAddrs(host int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", host)),
		netip.MustParsePrefix(fmt.Sprintf("2001:db8:1::%x/64", host)),
	}
}

// NewCluster makes n nodes. On an error nothing is left.
func NewCluster(n int) (_ *Cluster, err error) {
	c := &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.Switch, err = NewNetns("switch"); err != nil {
		return nil, err
	}
	if err := c.Switch.Do(func() error {
		if err := prepareClient(); err != nil {
			return err
		}
		return ipBatch(append([]string{"link add br0 type bridge mcast_snooping 0"}, deviceLines("br0", ClusterSwitch())...)...)
	}); err != nil {
		return nil, err
	}
	for i := range n {
		if err := c.addNode(i); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
	}
	return c, nil
}

func (c *Cluster) addNode(i int) error {
	node, err := NewNode()
	if err != nil {
		return err
	}
	node.Name = fmt.Sprintf("node%d", i)
	c.Nodes = append(c.Nodes, node)
	port := fmt.Sprintf("port%d", i)
	if err := node.Do(func() error {
		if err := ipBatch(fmt.Sprintf("link add eth0 type veth peer name %s netns %s", port, c.Switch.ProcPath())); err != nil {
			return err
		}
		if err := writeSysctl("net/ipv6/conf/eth0/accept_dad", "0"); err != nil {
			return err
		}
		return ipBatch(deviceLines("eth0", ClusterNode(i))...)
	}); err != nil {
		return err
	}
	if err := c.Switch.Do(func() error {
		if err := ipBatch("link set "+port+" master br0", "link set "+port+" up"); err != nil {
			return err
		}
		return awaitForwarding(port)
	}); err != nil {
		return err
	}
	if err := node.Do(func() error { return awaitIPv6("eth0") }); err != nil {
		return err
	}
	if err := node.defaultRoutes("eth0", ClusterSwitch()); err != nil {
		return err
	}
	return node.setForwarding(true, true)
}

// awaitForwarding waits until a bridge takes packets of a port, which it does when the kernel has told it of the carrier.
func awaitForwarding(port string) error {
	for deadline := time.Now().Add(Patient(5 * time.Second)); ; time.Sleep(time.Millisecond) {
		out, err := Run("ip", "-d", "link", "show", "dev", port)
		if err != nil {
			return err
		}
		if strings.Contains(out, "state forwarding") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not forward: %s", port, out)
		}
	}
}

// Close drops this process's hold on the namespaces. Closing twice is fine.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.Close())
	}
	if c.Switch != nil {
		errs = append(errs, c.Switch.Close())
	}
	return errors.Join(errs...)
}

// NewClusterT is NewCluster for tests. An error ends the test, and the cluster goes with it.
func NewClusterT(t testing.TB, n int) *Cluster {
	t.Helper()
	c, err := NewCluster(n)
	if err != nil {
		t.Fatalf("make cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close cluster: %v", err)
		}
	})
	return c
}
