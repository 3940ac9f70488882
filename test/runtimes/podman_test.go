// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// podman 4 is the last with CNI. Its configurations are its own: `podman network create` writes them.
type podman struct {
	*machine
	words  []string // the command, with what puts its state into the machine
	rootfs string
	group  string // the parent of pods' cgroups
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	version, err := exec.Command("podman", "version", "--format", "{{.Client.Version}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	if major, _, _ := strings.Cut(string(version), "."); major != "4" && major != "3" {
		t.Fatalf("podman %s has no CNI, podman 4 had: Debian 12 has that one", strings.TrimSpace(string(version)))
	}
	group := ownGroup(t) // before the machine: what is in it ends first
	p := &podman{machine: newMachine(t), rootfs: rootDir, group: group, words: []string{
		"env", "CONTAINERS_CONF=/run/containers.conf", "podman", "--root", stateDir + "/root", "--runroot", stateDir + "/run",
		"--tmpdir", stateDir + "/tmp", "--storage-driver", "vfs",
	}}
	// A container gets the limits of who runs podman, which may not be raised in a container of a test environment.
	p.write("/run/containers.conf", `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["`+pluginDir+`"]
network_config_dir = "`+confDir+`"
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "none"
`)
	return p
}

func (p *podman) do(args ...string) string {
	p.t.Helper()
	return p.run(p.words[0], append(slices.Clone(p.words[1:]), args...)...)
}

// start runs a container that serves its name.
func (p *podman) start(name string, options ...string) {
	p.t.Helper()
	args := slices.Concat([]string{"run", "--detach", "--name", name, "--cgroups", "disabled"}, options, []string{"--rootfs", p.rootfs, "/workload", "serve", name})
	p.do(args...)
}

// in returns what asks a server from a container.
func (p *podman) in(name string) func(url string) string {
	return func(url string) string {
		p.t.Helper()
		return p.do("exec", name, "/workload", "ask", url)
	}
}

// network has podman write a configuration for both families.
func (p *podman) network(name, v4, v6 string) {
	p.t.Helper()
	p.do("network", "create", "--subnet", v4, "--ipv6", "--subnet", v6, name)
}

// first makes what the containers of a network share, and what stays.
func (p *podman) first(network string) {
	p.t.Helper()
	p.start("first", "--network", network, "--publish", "8080:80")
	p.do("network", "reload", "first")
	p.do("rm", "--force", "--time", "0", "first")
}

// eachBackend runs f on a node for each backend that a node can choose.
func eachBackend(t *testing.T, f func(t *testing.T, p *podman)) {
	t.Helper()
	for _, b := range []string{"ebpf", "iptables", "nftables"} {
		t.Run(b, func(t *testing.T) {
			t.Parallel()
			p := newPodman(t)
			p.write("/etc/sluice/config.json", `{"backend":"`+b+`"}`)
			p.serveClient()
			p.network("one", "10.70.0.0/24", "fd00:70::/64")
			p.first("one")
			f(t, p)
		})
	}
}

// What podman does with containers: their ports, their way out, each other; a container that is stopped and started, one whose
// rules are made again, one that dies. Nothing is left of them.
func TestPrivilegedPodman(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, p *podman) {
		before := p.snapshot()
		p.start("a", "--network", "one", "--publish", "8080:80", "--publish", "8080:80/udp")
		p.start("b", "--network", "one:ip=10.70.0.77,mac=02:00:00:00:00:77", "--publish", "192.0.2.1:8081:80", "--publish", "[2001:db8:1::1]:8081:80")
		p.published(8080, "a")
		p.publishedUDP(8080, "a")
		p.published(8081, "b")
		p.masqueraded(p.in("a"))
		for _, url := range []string{"http://10.70.0.77/", "http://192.0.2.1:8081/", "http://[2001:db8:1::1]:8081/"} {
			if got := p.in("a")(url); got != "b" {
				t.Errorf("a asks %s: %q", url, got)
			}
		}
		if link := p.do("exec", "b", "/workload", "show", "eth0"); !strings.Contains(link, "02:00:00:00:00:77") || !strings.Contains(link, "10.70.0.77/24") {
			t.Errorf("b has not what was asked for:\n%s", link)
		}
		p.do("network", "reload", "a")
		p.published(8080, "a")
		p.publishedUDP(8080, "a")
		p.do("restart", "--time", "0", "b")
		p.published(8081, "b")
		p.do("stop", "--time", "0", "b")
		p.unpublished(8081)
		p.published(8080, "a")
		p.do("start", "b")
		p.published(8081, "b")
		p.do("kill", "b") // what podman left running cleans up
		p.do("wait", "b")
		p.do("rm", "--force", "--time", "0", "a", "b")
		p.unpublished(8080)
		p.unchanged(before, "a and b")
	})
}

// A container that joins a second network and leaves it.
func TestPrivilegedPodmanConnect(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, p *podman) {
		p.network("two", "10.71.0.0/24", "fd00:71::/64")
		p.first("two")
		before := p.snapshot()
		p.start("a", "--network", "one", "--publish", "8080:80")
		p.start("b", "--network", "two")
		p.do("network", "connect", "--ip", "10.71.0.9", "two", "a")
		if got := p.in("b")("http://10.71.0.9/"); got != "a" {
			t.Errorf("b asks a in their network: %q", got)
		}
		p.published(8080, "a")
		p.do("network", "disconnect", "two", "a")
		p.published(8080, "a")
		p.masqueraded(p.in("a"))
		p.do("rm", "--force", "--time", "0", "a", "b")
		p.unchanged(before, "a and b")
	})
}

// A pod of several containers, which share what is its infra container's.
func TestPrivilegedPodmanPod(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, p *podman) {
		before := p.snapshot()
		p.do("pod", "create", "--name", "pod", "--cgroup-parent", p.group, "--network", "one", "--publish", "8080:80")
		p.start("a", "--pod", "pod")
		p.published(8080, "a")
		p.do("pod", "rm", "--force", "--time", "0", "pod")
		p.unpublished(8080)
		p.unchanged(before, "the pod")
	})
}

// A node that goes from upstream's plugins to ours and back, with containers that run all the while.
func TestPrivilegedPodmanSwap(t *testing.T) {
	t.Parallel()
	reference := []string{"bridge", "host-local", "portmap", "firewall", "tuning", "loopback"}
	eachBackend(t, func(t *testing.T, p *podman) {
		p.layReference(reference...)
		p.start("first", "--network", "one", "--publish", "8080:80")
		p.layOurs()
		p.do("rm", "--force", "--time", "0", "first")
		p.first("one")
		before := p.snapshot()
		p.layReference(reference...)
		p.start("a", "--network", "one", "--publish", "8080:80")
		p.published(8080, "a")
		p.layOurs()
		p.published(8080, "a")
		p.start("b", "--network", "one", "--publish", "8081:80")
		p.published(8081, "b")
		p.published(8080, "a")
		p.masqueraded(p.in("a"))
		p.masqueraded(p.in("b"))
		p.do("network", "reload", "a")
		p.published(8080, "a")
		p.layReference(reference...)
		p.published(8080, "a")
		p.published(8081, "b")
		p.do("rm", "--force", "--time", "0", "b")
		p.unpublished(8081)
		p.sluice("cleanup", "--yes") // upstream's DEL knows nothing of maps and records
		p.layOurs()
		p.do("rm", "--force", "--time", "0", "a")
		p.unpublished(8080)
		p.unchanged(before, "a and b")
	})
}
