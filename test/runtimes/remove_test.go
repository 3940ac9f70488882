// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// "sluice-agent remove" on a node without another network: containerd makes no DEL without one. So pods drain, no new one starts, and
// the removal ends. Upstream's plugins then run on the node.
func TestPrivilegedContainerdRemove(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		c.agentConf()
		first, last := c.limited("first", 8080), c.limited("last", 8081)
		removed := make(chan error, 1)
		go func() {
			out, err := c.try(programs.Path("sluice-agent"), "remove", "--wait")
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			removed <- err
		}()
		c.await("no new pods", func() bool {
			late, err := c.tryRun(c.podConfig("late"))
			if err == nil {
				c.mustEnd(late)
				return false
			}
			return strings.Contains(err.Error(), "takes no new pods")
		})
		c.published(8080, "first")
		c.mustEnd(first)
		c.published(8081, "last")
		c.mustEnd(last)
		select {
		case err := <-removed:
			if err != nil {
				t.Errorf("remove --wait: %v", err)
			}
		case <-time.After(netlab.Patient(time.Minute)):
			t.Fatal("the removal does not end")
		}
		c.removed()
		c.layReference(referencePlugins...)
		c.configure(pods("1.0.0"))
		c.awaitNetwork("pods", "1.0.0")
		theirs := c.limited("theirs", 8080)
		c.published(8080, "theirs")
		c.mustEnd(theirs)
	})
}

// The same with the network and the plugins of another suite in place: they serve new pods at once, and get the DEL of Sluice's.
func TestPrivilegedContainerdRemoveReplaced(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		c.agentConf()
		first, last := c.limited("first", 8080), c.limited("last", 8081)
		c.layReference(referencePlugins...)
		c.write(confDir+"/20-other.conflist", strings.NewReplacer(`"pods"`, `"other"`, "cni0", "cni1", "10.244.", "10.245.", "fd00:10:244", "fd00:10:245").Replace(pods("1.0.0")))
		remove := func() error {
			_, err := c.try(programs.Path("sluice-agent"), "remove")
			return err
		}
		if err := remove(); err == nil || !strings.Contains(err.Error(), "2 attachments") {
			t.Errorf("with two pods: %v", err)
		}
		c.awaitNetwork("other", "1.0.0")
		theirs := c.limited("theirs", 8082)
		c.published(8081, "last")
		c.mustEnd(first)
		if err := remove(); err == nil || !strings.Contains(err.Error(), "1 attachments") {
			t.Errorf("with one pod: %v", err)
		}
		c.unpublished(8080)
		if held := c.held(); slices.Contains(held, first.ips[0]) || !slices.Contains(held, last.ips[0]) {
			t.Errorf("addresses held: %v; %v is gone, and %v is not", held, first.ips, last.ips)
		}
		c.mustEnd(last)
		if err := remove(); err != nil {
			t.Error(err)
		}
		c.removed(referencePlugins...)
		c.published(8082, "theirs")
		c.mustEnd(theirs)
	})
}

// agentConf writes the configuration of an agent whose network is the pods'.
func (c *containerd) agentConf() {
	c.t.Helper()
	c.write("/etc/sluice/agent.yaml", fmt.Sprintf("paths: {binDir: %s, confDir: %s}\nnetwork: {name: pods, file: 10-pods.conflist, plugin: bridge}\nruntimeEndpoint: %s\n",
		pluginDir, confDir, containerdSocket))
}

// held are the addresses that host-local holds for the pods' network.
func (c *containerd) held() []string {
	c.t.Helper()
	return strings.Fields(c.run("sh", "-c", "ls /var/lib/cni/networks/pods 2>/dev/null | grep -E '^[0-9a-f.:]+$' || true"))
}

// removed wants nothing of Sluice on the node, and these plugins of others.
func (c *containerd) removed(plugins ...string) {
	c.t.Helper()
	left := c.run("sh", "-c", "ls -d "+confDir+"/10-pods.conflist /run/sluice/attachments/*.json /var/lib/cni/results/pods-* 2>/dev/null || true")
	if held := c.held(); left != "" || len(held) > 0 {
		c.t.Errorf("left: %s, addresses %v", left, held)
	}
	if got, want := strings.Fields(c.run("ls", pluginDir)), slices.Sorted(slices.Values(plugins)); !slices.Equal(got, want) {
		c.t.Errorf("plugins: %v, want %v", got, want)
	}
	if out := c.sluice("status"); !strings.Contains(out, "Nothing is loaded") {
		c.t.Errorf("the datapath is left:\n%s", out)
	}
}
