// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// containerd dies and comes back; its pods live on, and are ended by the new one.
func TestPrivilegedContainerdKilled(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		c.serveClient()
		before := c.settled()
		a := c.pod(c.podConfig("a", tcp(8080)))
		c.kill()
		c.published(8080, "a")
		c.start()
		c.published(8080, "a")
		c.masqueraded(a.ask)
		b := c.pod(c.podConfig("b", tcp(8081)))
		c.published(8081, "b")
		c.mustEnd(a, b)
		c.unchanged(before, "a restart of containerd")
	})
}

// The network has another name when its pods are ended. No plugin is told the old one: the device goes with the pod, the rest is
// found by the operator's tool.
func TestPrivilegedContainerdRenamed(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		renamed := strings.Replace(pods("0.4.0"), `"pods"`, `"others"`, 1)
		before := c.settled()
		a := c.limited("a", 8080)
		c.configure(renamed)
		c.awaitNetwork("others", "0.4.0")
		c.mustEnd(a)
		c.unpublished(8080)
		b := c.limited("b", 8080)
		c.published(8080, "b")
		c.sluice("cleanup", "--yes")
		c.published(8080, "b")
		c.mustEnd(b)
		c.reconfigure(pods("1.0.0"), "1.0.0")
		// A reservation that no DEL came for may be in use: the tool names it and leaves it to the operator.
		if out := c.sluice("cleanup"); !strings.Contains(out, "in doubt      "+a.ips[0]+" of network pods, held for "+a.id) {
			t.Errorf("sweep says nothing of the reservation: %s", out)
		}
		c.run("sh", "-c", "rm -r /var/lib/cni/results/pods-* /var/lib/cni/networks/*/[1-9f]* /var/lib/cni/networks/others /var/lib/cni/networks/.sluice/others")
		c.settled()
		c.unchanged(before, "the new name")
	})
}

// What holds a pod together is gone before kubelet ends it: its first process, its namespace's path, or both.
func TestPrivilegedContainerdBrokenPods(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		breaks := map[string]func(s *sandbox){
			"process": func(s *sandbox) { c.run("kill", "-KILL", s.pausePID()) },
			"path":    func(s *sandbox) { s.loseNetns() },
			"both": func(s *sandbox) {
				pid := s.pausePID()
				s.loseNetns()
				c.run("kill", "-KILL", pid)
			},
		}
		var all []*sandbox
		for name := range breaks {
			all = append(all, c.pod(c.podConfig(name, tcp(8000+int32(len(all))))))
		}
		for _, s := range all {
			breaks[s.config.Metadata.Name](s)
		}
		time.Sleep(200 * time.Millisecond) // containerd hears of the end of a process in its own time
		c.mustEnd(all...)
		c.unchanged(before, "broken pods")
	})
}

// pausePID is the pod's first process, as the machine knows it.
func (s *sandbox) pausePID() string {
	s.c.t.Helper()
	for line := range strings.Lines(s.c.ctr("tasks", "list")) {
		if f := strings.Fields(line); f[0] == s.id {
			return f[1]
		}
	}
	s.c.t.Fatalf("containerd knows no process of pod %s", s.config.Metadata.Name)
	return ""
}

// loseNetns takes the path of the pod's namespace away.
func (s *sandbox) loseNetns() {
	s.c.t.Helper()
	path, err := s.netnsPath()
	if err != nil {
		s.c.t.Fatal(err)
	}
	s.c.run("umount", "-n", path)
	s.c.run("rm", path)
}

// kubelet gives up at any moment while a pod is made, or ended: the plugin that runs is killed, DEL comes, and nothing is left.
func TestPrivilegedContainerdCancelled(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		cancelled := 0
		for i := range netlab.Fewer(30, 10) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i+1)*5*time.Millisecond)
			_, err := c.pods.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: c.podConfig(fmt.Sprint("p", i), tcp(8080), port(8080, cri.Protocol_UDP, ""))})
			cancel()
			if err != nil {
				cancelled++
			}
		}
		c.endAll()
		t.Log(cancelled, "were given up while they were made")
		c.unchanged(before, "pods that were given up while they were made")
		cancelled = 0
		var all []*sandbox
		for i := range netlab.Fewer(8, 4) {
			s, err := c.tryRun(c.podConfig(fmt.Sprint("p", i), tcp(8080+int32(i))))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		for i, s := range all {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+i*20)*time.Millisecond)
			if _, err := c.pods.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.id}); err != nil {
				cancelled++
			}
			cancel()
		}
		c.endAll()
		t.Log(cancelled, "were given up while they were ended")
		c.unchanged(before, "pods that were given up while they were ended")
	})
}

// endAll ends all that containerd knows, until it knows none: the making of a pod that was given up may go on for a while.
func (c *containerd) endAll() {
	c.t.Helper()
	late := time.Now().Add(netlab.Patient(20 * time.Second))
	for quiet := 0; quiet < 5; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), commandTime)
		r, err := c.pods.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		cancel()
		for _, p := range r.GetItems() {
			err = errors.Join(err, (&sandbox{c: c, id: p.Id}).end())
		}
		switch {
		case err == nil && len(r.GetItems()) == 0:
			quiet++
		case time.Now().After(late):
			c.t.Fatalf("pods stay: %v", err)
		default:
			quiet = 0
		}
	}
}

// An ADD that fails in a plugin after the first: kubelet is told why, and nothing is left.
func TestPrivilegedContainerdRefused(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		for name, tt := range map[string]struct {
			port *cri.PortMapping
			want []string
		}{
			"too large":  {tcp(70000), []string{"portmap", "70000"}},
			"no address": {port(8080, cri.Protocol_TCP, "192.0.2.300"), []string{"portmap", "192.0.2.300"}},
		} {
			_, err := c.tryRun(c.podConfig("refused", tcp(8079), tt.port))
			if err == nil {
				t.Errorf("%s: the pod is made", name)
				continue
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s: no word of %s in: %v", name, w, err)
				}
			}
			c.unchanged(before, "a refused pod: "+name)
		}
	})
}

// A network without a free address says so, and has one again when a pod ends.
func TestPrivilegedContainerdFull(t *testing.T) {
	t.Parallel()
	small := strings.Replace(pods("1.0.0"), "10.244.0.0/24", "10.244.0.0/30", 1)
	eachContainerd(t, small, func(t *testing.T, c *containerd) {
		before := c.settled()
		a := c.pod(c.podConfig("a"))
		_, err := c.tryRun(c.podConfig("b"))
		if err == nil || !strings.Contains(err.Error(), "10.244.0.1-10.244.0.2") {
			t.Errorf("a pod without an address: %v", err)
		}
		c.mustEnd(a)
		b := c.pod(c.podConfig("b"))
		c.mustEnd(b)
		c.unchanged(before, "a full network")
	})
}

// The machine restarts: nothing of the kernel is there any more, and nothing of /run; containerd's own disk and the plugins' are.
func TestPrivilegedContainerdReboot(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		a := c.pod(c.podConfig("a", tcp(8080)))
		b := c.pod(c.podConfig("b", tcp(8081)))
		c.reboot(a, b)
		if got := strings.Fields(c.run("sh", "-c", "ls -d /var/lib/cni/networks/pods/10.*")); len(got) != 2 {
			t.Errorf("the reservations after the restart: %v", got)
		}
		c.start()
		// kubelet ends the pods that are dead and makes new ones.
		c.mustEnd(a)
		c2 := c.pod(c.podConfig("c", tcp(8080)))
		c.published(8080, "c")
		c.mustEnd(b)
		c.published(8080, "c")
		c.mustEnd(c2)
		c.unchanged(c.settled(), "a restart of the machine")
		if left := c.snapshot().Grep("/var/lib/cni/networks/pods/10."); len(left) > 0 {
			t.Errorf("the reservations of pods from before the restart: %v", left)
		}
	})
}

func (c *containerd) reboot(pods ...*sandbox) {
	c.t.Helper()
	var paths []string
	for _, s := range pods {
		path, err := s.netnsPath()
		if err != nil {
			c.t.Fatal(err)
		}
		paths = append(paths, path)
	}
	c.kill()
	c.run("sh", "-c", "kill -KILL $(pidof containerd-shim-runc-v2 workload) || true; sleep 0.3")
	for _, p := range paths {
		c.run("umount", "-n", p)
		c.run("rm", p)
	}
	c.run("sh", "-c", "awk '$2 ~ \""+stateDir+"/state\" {print $2}' /proc/mounts | sort -r | xargs -n 1 umount -n")
	c.run("sh", "-c", "ip link del cni0; rm -rf /run/containerd/* /run/sluice "+stateDir+"/state")
	c.run("sh", "-c", "rm -rf /sys/fs/bpf/sluice")
}

// A runtime that has its namespaces elsewhere: no pod that lives is taken for one that has gone.
func TestPrivilegedContainerdStateDir(t *testing.T) {
	t.Parallel()
	eachContainerd(t, pods("1.0.0"), func(t *testing.T, c *containerd) {
		before := c.settled()
		a := c.pod(c.podConfig("a", tcp(8080)))
		if path, err := a.netnsPath(); err != nil || !strings.HasPrefix(path, stateDir) {
			t.Fatalf("the namespace is at %s, %v", path, err)
		}
		if out := c.sluice("cleanup", "--yes"); !strings.Contains(out, "Nothing to remove.") {
			t.Errorf("sweep beside a pod: %s", out)
		}
		c.published(8080, "a")
		c.mustEnd(a)
		c.unchanged(before, "a pod")
	}, "netns_mounts_under_state_dir = true")
}

// STATUS by containerd 2: where the datapath cannot run, the node's network is not ready, and kubelet is told why.
func TestPrivilegedContainerdNetworkReady(t *testing.T) {
	t.Parallel()
	newestContainerd(t, pods("1.1.0"), func(t *testing.T, c *containerd) {
		c.run("mv", pluginDir+"/sluice-helper", pluginDir+"/away")
		c.networkReady("sluice-helper")
		if _, err := c.tryRun(c.podConfig("a", tcp(8080))); err == nil || !strings.Contains(err.Error(), "sluice-helper") {
			t.Errorf("a pod without the datapath: %v", err)
		}
		c.run("mv", pluginDir+"/away", pluginDir+"/sluice-helper")
		c.networkReady("")
		before := c.settled()
		a := c.pod(c.podConfig("a", tcp(8080)))
		c.published(8080, "a")
		c.mustEnd(a)
		c.unchanged(before, "a pod")
	})
}

// A full pool stops the next pod, not the node: kubelet would evict the pods of a node that is not ready.
func TestPrivilegedContainerdNetworkFull(t *testing.T) {
	t.Parallel()
	newestContainerd(t, strings.Replace(pods("1.1.0"), "10.244.0.0/24", "10.244.0.0/30", 1), func(t *testing.T, c *containerd) {
		c.networkReady("")
		a := c.pod(c.podConfig("a", tcp(8080)))
		if _, err := c.tryRun(c.podConfig("b")); err == nil || !strings.Contains(err.Error(), "10.244.0.1-10.244.0.2") {
			t.Errorf("a pod without an address: %v", err)
		}
		c.networkReady("")
		c.published(8080, "a")
		c.mustEnd(a)
		c.networkReady("")
	})
}

// networkReady wants the network ready, or the reason why it is not to have some words.
func (c *containerd) networkReady(why string) {
	c.t.Helper()
	late := time.Now().Add(netlab.Patient(10 * time.Second))
	for {
		r, err := c.ready(false)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, condition := range r.Status.Conditions {
			if condition.Type != cri.NetworkReady {
				continue
			}
			if condition.Status == (why == "") && strings.Contains(condition.Message, why) {
				return
			}
			if time.Now().After(late) {
				c.t.Fatalf("the network is ready: %v, %s", condition.Status, condition.Message)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}
