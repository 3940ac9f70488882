// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const (
	containerdSocket = stateDir + "/containerd.sock"
	containerdConfig = stateDir + "/config.toml"
	containerdLog    = stateDir + "/containerd.log"
)

// containerdConf is the configuration of containerd in one of its two forms, 1.x's and 2.x's. A sandbox may not get out of the
// memory killer's way on every machine that runs tests.
func containerdConf(two bool, service, cni string) string {
	version, section, dirs := 2, "io.containerd.grpc.v1.cri", `bin_dir = "`+pluginDir+`"`
	image := `sandbox_image = "` + imageName + `"`
	tables := ""
	if two {
		version, section, dirs = 3, "io.containerd.cri.v1.runtime", `bin_dirs = ["`+pluginDir+`"]`
		tables = "[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = \"" + imageName + "\"\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true\n"
		image = ""
	}
	return fmt.Sprintf(`version = %d
root = "%[2]s/content"
state = "%[2]s/state"
[grpc]
  address = "%[3]s"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[2]s/opt"
[plugins.%[4]q]
  restrict_oom_score_adj = true
  %[5]s
  %[6]s
[plugins.%[4]q.cni]
  %[7]s
  conf_dir = "%[8]s"
  %[9]s
%[10]s`, version, stateDir, containerdSocket, section, image, service, dirs, confDir, cni, tables)
}

// containerd is a node that runs one, and who asks it as kubelet does.
type containerd struct {
	*machine
	dir  string // of its programs, "" for those of the machine
	pid  int    // of the running one, 0 for none
	pods cri.RuntimeServiceClient
	// group is the parent of the pods' cgroups.
	group string
}

// newContainerd starts containerd with a network, on a node of its own. dir has its programs; more are settings of its CRI service,
// and of what it does with plugins.
func newContainerd(t *testing.T, dir, network string, more ...string) *containerd {
	t.Helper()
	group := ownGroup(t) // before the machine: what is in it ends first
	return newMachine(t).containerd(group, dir, network, more...)
}

// containerd starts one on the machine. group is the parent of its pods' cgroups, which has to end after the machine.
func (m *machine) containerd(group, dir, network string, more ...string) *containerd {
	t := m.t
	t.Helper()
	c := &containerd{machine: m, dir: dir, group: group}
	more = append(more, "", "")
	c.write(containerdConfig, containerdConf(dir != "", more[0], more[1]))
	c.configure(network)
	var image bytes.Buffer
	if err := writeImage(&image); err != nil {
		t.Fatal(err)
	}
	c.write(stateDir+"/image.tar", image.String())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd's log:\n%s", c.read(containerdLog))
		}
	})
	c.start()
	c.ctr("images", "import", stateDir+"/image.tar")
	return c
}

// configure gives the node its network.
func (c *containerd) configure(network string) { c.write(confDir+"/10-pods.conflist", network) }

// start runs containerd and waits until it answers.
func (c *containerd) start() {
	c.t.Helper()
	name := "containerd"
	path := os.Getenv("PATH")
	if c.dir != "" {
		name = filepath.Join(c.dir, name)
		path = c.dir + ":" + path
	}
	// A shell, since the first process of the machine is the parent of none of them: the pid is its own word.
	c.run("env", "PATH="+path, "sh", "-c", name+" --config "+containerdConfig+" >>"+containerdLog+" 2>&1 & echo $! >"+stateDir+"/pid")
	pid, err := strconv.Atoi(strings.TrimSpace(c.read(stateDir + "/pid")))
	if err != nil {
		c.t.Fatal(err)
	}
	c.pid = pid
	c.connect()
}

// kill ends containerd without a word to it. Its shims live on.
func (c *containerd) kill() {
	c.t.Helper()
	c.run("kill", "-KILL", strconv.Itoa(c.pid))
}

// connect makes the client and waits for the runtime service.
func (c *containerd) connect() {
	c.t.Helper()
	dial := func(context.Context, string) (conn net.Conn, err error) {
		err = c.Node.Do(func() error {
			conn, err = net.Dial("unix", containerdSocket)
			return err
		})
		return conn, err
	}
	conn, err := grpc.NewClient("passthrough:///containerd", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	c.pods = cri.NewRuntimeServiceClient(conn)
	late := time.Now().Add(netlab.Patient(30 * time.Second))
	for {
		ctx, cancel := context.WithTimeout(context.Background(), netlab.Patient(5*time.Second))
		_, err := c.pods.Version(ctx, &cri.VersionRequest{})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(late) {
			c.t.Fatalf("containerd does not answer: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// ctr runs containerd's own client in kubelet's namespace.
func (c *containerd) ctr(args ...string) string {
	c.t.Helper()
	return c.run(filepath.Join(c.dir, "ctr"), append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

// unchanged wants the node to be as it was, and no pod in the datapath.
func (c *containerd) unchanged(before netlab.Snapshot, after string) {
	c.t.Helper()
	c.machine.unchanged(before, after)
	for _, list := range []string{"endpoints", "hostports", "bandwidth"} {
		if out := c.sluice(list); strings.Contains(out, "/eth") {
			c.t.Errorf("after %s, %s: %s", after, list, out)
		}
	}
}

// read returns a file of the machine.
func (c *containerd) read(name string) string {
	c.t.Helper()
	var data []byte
	if err := c.Node.Do(func() (err error) {
		data, err = os.ReadFile(name)
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	return string(data)
}

// endGroup removes a tree of cgroups by the last element of its path, in the trees of all controllers, once the other end of the pipe has closed its
// input and the processes that were killed are gone.
const endGroup = `read x; for i in 1 2 3 4 5 6 7 8 9 10; do
	find /sys/fs/cgroup -depth -type d -path "*/$0*" -delete 2>/dev/null
	[ -z "$(find /sys/fs/cgroup -type d -name "$0")" ] && exit; sleep 0.2; done; exit 1`

// ownGroup names a cgroup for what the test runs. It goes when the test is over, however that comes.
func ownGroup(t *testing.T) string {
	t.Helper()
	name := "sluice-runtimes-" + strconv.Itoa(os.Getpid()) + "-" + strings.ReplaceAll(t.Name(), "/", "-")
	cmd := exec.Command("/bin/sh", "-c", endGroup, name)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // ctrl-C is for the whole group of processes
	end, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = end.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("cgroups %s stay: %v", name, err)
		}
	})
	return "/" + name
}
