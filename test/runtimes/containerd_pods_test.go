// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// pods is the network of a node, as docs/install-runtimes.md has it.
func pods(version string) string {
	firewall := `{ "type": "firewall" },`
	if version == "0.3.1" {
		firewall = "" // upstream's knows no version before 0.4.0 either
	}
	return fmt.Sprintf(`{ "cniVersion": %q, "name": "pods", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
    "ipam": { "type": "host-local",
      "ranges": [[{ "subnet": "10.244.0.0/24" }], [{ "subnet": "fd00:10:244::/64" }]],
      "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] } },
  { "type": "portmap", "capabilities": { "portMappings": true } },
  %s
  { "type": "bandwidth", "capabilities": { "bandwidth": true } } ] }`, version, firewall)
}

// eachContainerd runs f on a node of Debian's containerd, and with -built of the newest, and of Debian's with the other
// backends. Without -built, these are skipped.
func eachContainerd(t *testing.T, network string, f func(t *testing.T, c *containerd), more ...string) {
	t.Helper()
	run := func(name, backend string, asked bool, dir func(t *testing.T) string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Asked(t, asked, target)
			group := ownGroup(t)
			m := newMachine(t)
			m.write("/etc/sluice/config.json", `{"backend":"`+backend+`"}`)
			f(t, m.containerd(group, dir(t), network, more...))
		})
	}
	debian := func(*testing.T) string { return "" }
	run("debian", "auto", true, debian)
	run("built", "auto", *built, builtContainerd)
	run("nftables", "nftables", *built, debian)
	run("iptables", "iptables", *built, debian)
}

// newestContainerd runs f on a node of the newest containerd with -built; what f is about, Debian's has not. Without
// -built it is skipped.
func newestContainerd(t *testing.T, network string, f func(t *testing.T, c *containerd)) {
	t.Helper()
	require.Asked(t, *built, target)
	t.Run("built", func(t *testing.T) { f(t, newContainerd(t, builtContainerd(t), network)) })
}

// settled makes and ends a pod, so that what stays by design is there.
func (c *containerd) settled() netlab.Snapshot {
	c.t.Helper()
	s, err := c.tryRun(c.podConfig("settle", tcp(7999)))
	if err != nil {
		c.t.Fatal(err)
	}
	// The bridge has its IPv6 routes once its addresses are valid. A shorter pod would leave it without them.
	e2etest.Eventually(c.t, 10*time.Second, func() error {
		if out := e2etest.MustRun(c.t, c.Node, "ip -6 -o addr show tentative"); out != "" {
			return fmt.Errorf("still tentative: %s", out)
		}
		return nil
	})
	c.mustEnd(s)
	c.sluice("resync")
	return c.snapshot()
}

func (c *containerd) mustEnd(pods ...*sandbox) {
	c.t.Helper()
	for _, s := range pods {
		if err := s.end(); err != nil {
			c.t.Errorf("end pod %s: %v", s.config.Metadata.Name, err)
		}
	}
}

// A pod of kubelet's kind: ports of all sorts, limits, both families; it is asked by the client, by the node's own processes
// and by another pod, and asks the client. Nothing is left of it.
func TestPrivilegedContainerdPod(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		c.serveClient()
		before := c.settled()
		config := c.podConfig("a", tcp(8080), port(5353, cri.Protocol_UDP, ""), port(8081, cri.Protocol_TCP, "192.0.2.1"), port(8081, cri.Protocol_TCP, "2001:db8:1::1"))
		config.Annotations["kubernetes.io/ingress-bandwidth"] = "80M"
		config.Annotations["kubernetes.io/egress-bandwidth"] = "40M"
		a := c.pod(config)
		b := c.pod(c.podConfig("b"))
		if len(a.ips) != 2 || !strings.HasPrefix(a.ips[0], "10.244.0.") || !strings.HasPrefix(a.ips[1], "fd00:10:244::") {
			t.Errorf("the pod has the addresses %v", a.ips)
		}
		c.published(8080, "a")
		c.published(8081, "a")
		c.publishedUDP(5353, "a")
		c.masqueraded(a.ask)
		c.masqueraded(b.ask)
		for _, url := range []string{"http://192.0.2.1:8080/", "http://[2001:db8:1::1]:8081/", "http://" + a.ips[0] + "/", "http://[" + a.ips[1] + "]/"} {
			if got := b.ask(url); got != "a" {
				t.Errorf("b asks %s: %q", url, got)
			}
		}
		// Its own loopback is not the node's.
		if got := b.ask("http://127.0.0.1/"); got != "b" {
			t.Errorf("b asks itself: %q", got)
		}
		if got, err := b.tryAsk("http://127.0.0.1:8080/"); err == nil {
			t.Errorf("b asks its own port 8080, which nobody has: %q", got)
		}
		for _, addr := range []string{"127.0.0.1:8080", a.ips[0] + ":80", "[" + a.ips[1] + "]:80"} {
			if got, err := fetch(c.Node.NS, addr); err != nil || got != "a" {
				t.Errorf("the node asks %s: %q, %v", addr, got, err)
			}
		}
		if out := c.sluice("bandwidth"); !strings.Contains(out, "80Mbit/s") || !strings.Contains(out, "40Mbit/s") {
			t.Errorf("the pod's limits are not what its annotations say:\n%s", out)
		}
		c.mustEnd(a, b)
		c.unpublished(8080)
		c.unchanged(before, "two pods")
	})
}

// A network may say any version, and another one while its pods run.
func TestPrivilegedContainerdVersions(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("0.4.0"), func(t *testing.T, c *containerd) {
		// Each is that of a pod, and of the network when the one before it is ended.
		versions := []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0", "0.4.0"}
		if c.dir == "" {
			versions = slices.Delete(versions, 3, 4) // its libcni knows no result of 1.1.0
		}
		before := c.settled()
		for i, v := range versions[1:] {
			c.reconfigure(pods(versions[i]), versions[i])
			old := c.pod(c.podConfig("old", tcp(8080)))
			c.reconfigure(pods(v), v)
			young := c.pod(c.podConfig("young", tcp(8081)))
			c.published(8080, "old")
			c.published(8081, "young")
			c.mustEnd(old)
			c.published(8081, "young")
			c.mustEnd(young)
		}
		c.unchanged(before, "pods of all versions")
	})
}

// reconfigure gives the network another version.
func (c *containerd) reconfigure(network, version string) {
	c.t.Helper()
	c.configure(network)
	c.awaitNetwork("pods", version)
}

// awaitNetwork waits until containerd has read a network.
func (c *containerd) awaitNetwork(name, version string) {
	c.t.Helper()
	for late := time.Now().Add(netlab.Patient(10 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		r, err := c.ready(true)
		if err == nil && strings.Contains(r.Info["cniconfig"], `"Name":"`+name+`","CNIVersion":"`+version+`"`) {
			return
		}
		if time.Now().After(late) {
			c.t.Fatalf("containerd does not read %s of version %s: %v, %s", name, version, err, r.GetInfo()["cniconfig"])
		}
	}
}

// ready asks the runtime's status, as kubelet does.
func (c *containerd) ready(verbose bool) (*cri.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	return c.pods.Status(ctx, &cri.StatusRequest{Verbose: verbose})
}

// Many pods come at once and go at once.
func TestPrivilegedContainerdMany(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		many := make([]*sandbox, netlab.Fewer(20, 5))
		all := func(f func(i int) error) {
			t.Helper()
			done := make(chan error, len(many))
			for i := range many {
				go func() { done <- f(i) }()
			}
			var errs []error
			for range many {
				errs = append(errs, <-done)
			}
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		}
		// At the same time the node gets our plugins again, as at an update.
		updated := make(chan error, 1)
		go func() {
			var errs []error
			for range 5 {
				_, err := c.try(programs.Path("sluice"), "install", pluginDir)
				errs = append(errs, err)
			}
			updated <- errors.Join(errs...)
		}()
		all(func(i int) (err error) {
			many[i], err = c.tryRun(c.podConfig(fmt.Sprint("p", i), tcp(9000+int32(i))))
			return err
		})
		if err := <-updated; err != nil {
			t.Error(err)
		}
		for _, i := range []int{0, len(many) / 2, len(many) - 1} {
			if err := many[i].serve(); err != nil {
				t.Fatal(err)
			}
			c.published(uint16(9000+i), fmt.Sprint("p", i))
		}
		all(func(i int) error { return many[i].end() })
		c.unchanged(before, "many pods")
	})
}

// Two pods ask for one port, as when kubelet has not ended the old one yet: the younger has it; who is left has it back.
func TestPrivilegedContainerdSamePort(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		a := c.pod(c.podConfig("a", tcp(8080)))
		b := c.pod(c.podConfig("b", tcp(8080)))
		c.published(8080, "b")
		c.mustEnd(a)
		c.published(8080, "b")
		again := c.pod(c.podConfig("again", tcp(8080)))
		c.published(8080, "again")
		c.mustEnd(again)
		c.published(8080, "b")
		c.mustEnd(b)
		c.unpublished(8080)
		c.unchanged(before, "pods of one port")
	})
}

// Two runtimes on one node, each with a network of its own: what one does with its containers is nothing to the other's.
func TestPrivilegedTwoRuntimes(t *testing.T) {
	t.Parallel()
	group := ownGroup(t)
	p := newPodman(t)
	c := p.containerd(group, "", pods("1.0.0"))
	c.serveClient()
	p.network("one", "10.70.0.0/24", "fd00:70::/64")
	c.settled()
	p.first("one")
	before := c.snapshot()
	a := c.pod(c.podConfig("a", tcp(8080)))
	p.start("b", "--network", "one", "--publish", "8081:80")
	c.published(8080, "a")
	c.published(8081, "b")
	for url, want := range map[string]string{"http://192.0.2.1:8081/": "b", "http://[2001:db8:1::1]:8081/": "b"} {
		if got := a.ask(url); got != want {
			t.Errorf("a asks %s: %q", url, got)
		}
	}
	if got := p.in("b")("http://192.0.2.1:8080/"); got != "a" {
		t.Errorf("b asks for a: %q", got)
	}
	p.do("network", "reload", "b")
	if out := c.sluice("cleanup", "--yes"); !strings.Contains(out, "Nothing to remove.") {
		t.Errorf("sweep beside both: %s", out)
	}
	c.published(8080, "a")
	c.published(8081, "b")
	c.mustEnd(a)
	c.published(8081, "b")
	p.masqueraded(p.in("b"))
	p.do("rm", "--force", "--time", "0", "b")
	c.unchanged(before, "a and b")
}

// The first network of the node is that of ctr's containers.
func TestPrivilegedCtr(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		// ctr knows no other directories.
		c.run("sh", "-c", "mkdir -p /run/opt/cni && ln -s "+pluginDir+" /run/opt/cni/bin && mkdir -p /opt && mount --bind /run/opt /opt")
		before := c.settled()
		c.serveClient()
		out := c.ctr("run", "--rm", "--cni", "--cgroup", c.group+"/once", imageName, "once", "/workload", "ask", "http://192.0.2.2:"+fmt.Sprint(clientPort)+"/")
		if want := c.nodeAddrs()[0].String(); out != want {
			t.Errorf("the client saw %q, want %s", out, want)
		}
		c.unchanged(before, "a container of ctr")
	})
}

// A pod with a user namespace of its own has a network namespace that belongs to it.
func TestPrivilegedContainerdUserNamespace(t *testing.T) {
	t.Parallel()
	newestContainerd(t, pods("1.1.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		ids := []*cri.IDMapping{{HostId: 100000, Length: 65536}}
		config := c.podConfig("a", tcp(8080))
		config.Annotations["kubernetes.io/egress-bandwidth"] = "80M"
		config.Linux.SecurityContext = &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{
			UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids},
		}}
		a, err := c.tryRun(config)
		if err != nil {
			t.Fatal(err)
		}
		// Containers of it need a newer runc than Debian's: the test itself serves in the pod.
		stop, err := a.serveHere()
		if err != nil {
			t.Fatal(err)
		}
		c.published(8080, "a")
		stop()
		c.mustEnd(a)
		c.unchanged(before, "a pod with a user namespace")
	})
}
