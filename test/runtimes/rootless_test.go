// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A user that no other test or service on the machine has.
const (
	rootlessUser = "sluice-test"
	rootlessID   = 4711
)

// home is on a file system of its own: podman lays others over /run and /var/lib/cni in the namespaces of a user's networks.
const home = "/srv"

// newRootless is podman in the hands of a user. Its containers and their networks are in a user namespace and a network
// namespace of its own, which slirp4netns leads out of, and its plugins run there.
func newRootless(t *testing.T) *podman {
	t.Helper()
	p := newPodman(t)
	p.run("mount", "-t", "tmpfs", "-o", "mode=755,dev", "tmpfs", home)
	p.run("mount", "--make-rshared", "/") // podman warns about less
	// The node's /etc may lead to below /run by links.
	p.run("sh", "-ec", "test ! -e "+netlab.KeepDir+"/etc || mount --rbind "+netlab.KeepDir+"/etc /etc")
	for file, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("%s:x:%d:%d::%s/user:/bin/sh", rootlessUser, rootlessID, rootlessID, home),
		"/etc/group":  fmt.Sprintf("%s:x:%d:", rootlessUser, rootlessID),
		"/etc/subuid": rootlessUser + ":200000:65536",
		"/etc/subgid": rootlessUser + ":200000:65536",
	} {
		p.run("sh", "-ec", fmt.Sprintf("mkdir -p %[1]s/etc; cat %[2]s > %[1]s%[2]s; echo '%[3]s' >> %[1]s%[2]s; mount --bind %[1]s%[2]s %[2]s", home, file, line))
	}
	// Some machines keep /dev/net/tun for root.
	p.run("sh", "-ec", "mknod -m 666 "+home+"/tun c 10 200; mount --bind "+home+"/tun /dev/net/tun")
	p.sluice("install", home+"/plugins")
	p.run("cp", "-r", rootDir, home+"/rootfs")
	runtimeDir := fmt.Sprintf("/run/user/%d", rootlessID)
	p.run("sh", "-ec", fmt.Sprintf("mkdir -p %[1]s/user %[2]s; chown -R %[3]d:%[3]d %[1]s/user %[1]s/rootfs %[2]s; chmod 700 %[2]s", home, runtimeDir, rootlessID))
	p.run("sh", "-ec", fmt.Sprintf("sed 's,%[1]s,%[2]s/plugins,; /network_config_dir/d' /run/containers.conf > %[2]s/containers.conf", pluginDir, home))
	p.rootfs = home + "/rootfs"
	user := fmt.Sprint(rootlessID)
	p.words = []string{
		"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env", "-i", "-C", home + "/user", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + home + "/user", "XDG_RUNTIME_DIR=" + runtimeDir, "CONTAINERS_CONF=" + home + "/containers.conf", "podman", "--storage-driver", "vfs",
	}
	return p
}

// The plugins of a user without privileges: the kernel loads no programs for them, so they take the tables. A container publishes
// a port, finds another one by its address, and leaves nothing.
func TestPrivilegedPodmanRootless(t *testing.T) {
	t.Parallel()
	p := newRootless(t)
	p.network("one", "10.70.0.0/24", "fd00:70::/64")
	p.start("first", "--network", "one", "--publish", "8080:80")
	state := func() string {
		t.Helper()
		return p.do("unshare", "--rootless-netns", "sh", "-ec", "ls -A /run/sluice/attachments /var/lib/cni/networks/one; ip -o -4 address show; iptables-save")
	}
	p.published(8080, "first")
	if s := state(); !strings.Contains(s, "CNI-DN-") || !strings.Contains(s, "10.70.0.1/24") {
		t.Errorf("the user's network is not made by tables:\n%s", s)
	}
	p.start("a", "--network", "one:ip=10.70.0.9", "--publish", "8081:80")
	p.published(8081, "a")
	if got := p.in("first")("http://10.70.0.9/"); got != "a" {
		t.Errorf("one container asks the other: %q", got)
	}
	p.do("network", "reload", "a")
	p.published(8081, "a")
	p.do("rm", "--force", "--time", "0", "a")
	p.unpublished(8081)
	if s := state(); strings.Contains(s, "10.70.0.9") || strings.Contains(s, "8081") {
		t.Errorf("left of the container:\n%s", s)
	}
	p.published(8080, "first")
	p.do("rm", "--force", "--time", "0", "first")
}
