// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// referencePlugins are those of the pods' network.
var referencePlugins = []string{"bridge", "host-local", "portmap", "firewall", "bandwidth", "loopback"}

// A node goes from upstream's plugins to ours with pods running, and back again.
func TestPrivilegedContainerdSwitch(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		c.serveClient()
		c.layReference(referencePlugins...)
		theirs := c.limited("theirs", 8080)
		c.layOurs()
		c.mustEnd(theirs)
		before := c.settled()
		c.layReference(referencePlugins...)
		a := c.limited("a", 8080)
		b := c.limited("b", 8081)
		c.published(8080, "a")
		c.layOurs()
		c.published(8080, "a")
		ours := c.limited("ours", 8082)
		for _, s := range []*sandbox{a, b, ours} {
			c.masqueraded(s.ask)
		}
		c.published(8081, "b")
		c.published(8082, "ours")
		if got := ours.ask("http://192.0.2.1:8080/"); got != "a" {
			t.Errorf("ours asks a by the node's address: %q", got)
		}
		c.mustEnd(a)
		c.unpublished(8080)
		again := c.limited("again", 8080)
		c.published(8080, "again")
		c.mustEnd(again)

		c.layReference(referencePlugins...)
		c.published(8081, "b")
		c.published(8082, "ours")
		back := c.limited("back", 8080)
		c.published(8080, "back")
		c.masqueraded(back.ask)
		c.masqueraded(ours.ask)
		c.mustEnd(b, ours, back)
		for port := uint16(8080); port <= 8082; port++ {
			c.unpublished(port)
		}
		c.sluice("cleanup", "--yes") // what upstream cannot take out
		c.layOurs()
		c.settled()
		c.unchanged(before, "the way there and back")
	})
}

// limited is a pod with a port and limits.
func (c *containerd) limited(name string, host int32) *sandbox {
	c.t.Helper()
	config := c.podConfig(name, tcp(host), port(host, cri.Protocol_UDP, ""))
	config.Annotations["kubernetes.io/ingress-bandwidth"] = "80M"
	config.Annotations["kubernetes.io/egress-bandwidth"] = "80M"
	return c.pod(config)
}

// A runtime with two networks for every pod: it makes both at once, passes the ports to both, and takes both away.
func TestPrivilegedContainerdTwoNetworks(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		second := strings.NewReplacer(`"pods"`, `"more"`, "cni0", "cni1", "10.244.", "10.245.", "fd00:10:244", "fd00:10:245").Replace(pods("1.0.0"))
		c.write(confDir+"/20-more.conflist", second)
		c.awaitNetwork("more", "1.0.0")
		c.serveClient()
		before := c.settled()
		for i := range 5 {
			name := fmt.Sprint("p", i)
			s := c.limited(name, 8080)
			c.published(8080, name)
			c.publishedBoth(s, name)
			c.masqueraded(s.ask)
			if left := c.snapshot().Grep("/var/lib/cni/results/more-" + s.id + "-eth1"); len(left) != 1 {
				t.Errorf("pod %s is not in the second network", name)
			}
			c.mustEnd(s)
		}
		c.unchanged(before, "pods of two networks")
	}, "", "max_conf_num = 2")
}

// publishedBoth has the node ask a pod by each of its addresses.
func (c *containerd) publishedBoth(s *sandbox, want string) {
	c.t.Helper()
	for _, ip := range s.ips {
		if strings.Contains(ip, ":") {
			ip = "[" + ip + "]"
		}
		if got, err := fetch(c.Node.NS, ip+":80"); err != nil || got != want {
			c.t.Errorf("the node asks %s: %q, %v", ip, got, err)
		}
	}
}
