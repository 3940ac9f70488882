// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// pluginDir is where the packages put plugins.
const pluginDir = "/opt/cni/bin"

// covered are the folders of the machine that a packager changes. A host has a layer of its own over each.
var covered = []string{"/usr", "/etc", "/var", "/opt"}

// again are the node's own folders below those.
var again = []string{"/etc/sluice", "/etc/cni", "/var/lib/cni", "/opt"}

// host is a node whose packages can be changed: its namespaces are the lab's, its files those of the machine below a layer.
type host struct {
	*netlab.Lab
	t *testing.T
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{netlab.NewT(t), t}
	h.do(func() error {
		for _, dir := range covered {
			layers := "/run/layers" + dir
			for _, d := range []string{dir, layers + "/upper", layers + "/work"} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					return err
				}
			}
			options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", dir, layers)
			if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
				return fmt.Errorf("cover %s: %w", dir, err)
			}
		}
		for _, dir := range again {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
				return fmt.Errorf("cover %s: %w", dir, err)
			}
		}
		return nil
	})
	return h
}

// do runs f in the host's namespaces.
func (h *host) do(f func() error) {
	h.t.Helper()
	if err := h.Node.Do(f); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a program of the host and returns what it prints, on both channels.
func (h *host) run(name string, args ...string) string {
	h.t.Helper()
	out, err := h.try(name, args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) try(name string, args ...string) (out string, err error) {
	err = h.Node.Do(func() error {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
		said, err := cmd.CombinedOutput()
		if out = string(said); err != nil {
			return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
	return out, err
}

// write puts a program into a file of the host in one step, as an installer does.
func (h *host) write(file, content string) {
	h.t.Helper()
	h.do(func() error {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file+".new", []byte(content), 0o755); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	})
}

// read returns a file of the host, or "absent".
func (h *host) read(file string) (content string) {
	h.t.Helper()
	h.do(func() error {
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			content = "absent"
			return nil
		}
		content = string(data)
		return err
	})
	return content
}

// wantPlugin wants a plugin's file to start Sluice's program.
func (h *host) wantPlugin(name, when string) {
	h.t.Helper()
	if got := h.read(pluginDir + "/" + name); !strings.HasPrefix(got, "#!"+pluginDir+"/sluice-") {
		h.t.Errorf("%s: %s is no plugin of Sluice: %.40q", when, name, got)
	}
}

// wantFile wants a file to have a content.
func (h *host) wantFile(file, content, when string) {
	h.t.Helper()
	if got := h.read(file); got != content {
		h.t.Errorf("%s: %s is %.40q of %d bytes, want %.40q of %d", when, file, got, len(got), content, len(content))
	}
}

// wantVersion wants the tool, and the programs in the plugin directory, to be of a version.
func (h *host) wantVersion(version, when string) {
	h.t.Helper()
	if got := h.run("/usr/bin/sluice", "version"); !strings.Contains(got, version) {
		h.t.Errorf("%s: the tool says %q, want %s", when, got, version)
	}
	if got, want := h.read(pluginDir+"/sluice-cni"), h.read("/usr/lib/sluice/sluice-cni"); got != want {
		h.t.Errorf("%s: sluice-cni is not the package's", when)
	}
}

// upstream returns upstream's own plugin.
func upstream(t *testing.T, name string) string {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// network is a list that upstream's plugins and Sluice's both serve.
const network = `{"cniVersion": "1.0.0", "name": "%s", "plugins": [
	{"type": "bridge", "bridge": "%[1]s0", "isGateway": true, %s
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
	%s]}`

func (h *host) network(name, subnet, keys, chained string) *netlab.Runtime {
	h.t.Helper()
	rt, err := h.Node.CNI(netlab.CNIOptions{Path: []string{pluginDir}, Conflist: fmt.Appendf(nil, network, name, keys, subnet, chained)})
	if err != nil {
		h.t.Fatal(err)
	}
	return rt
}

// connection is an open TCP connection to a pod.
type connection struct {
	net.Conn
	lines *bufio.Reader
	t     *testing.T
}

// connect attaches a pod and opens a connection from a place to it.
func (h *host) connect(rt *netlab.Runtime, name, addr string, from *netlab.NS, hostPort int) *connection {
	h.t.Helper()
	pod := h.Node.PodT(h.t, name)
	att := netlab.Attachment{ContainerID: name, NetNS: pod.Path}
	if hostPort != 0 {
		att.Capabilities = map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}}}
	}
	if _, err := rt.Add(h.t.Context(), att); err != nil {
		h.t.Fatal(err)
	}
	stop, err := pod.ServeTCP(":80")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = stop() })
	ctx, cancel := context.WithTimeout(h.t.Context(), netlab.Patient(10*time.Second))
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	c := &connection{conn, bufio.NewReader(conn), h.t}
	if _, err := c.lines.ReadString('\n'); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// lives wants the connection to carry data.
func (c *connection) lives(when string) {
	c.t.Helper()
	if err := c.SetDeadline(time.Now().Add(netlab.Patient(5 * time.Second))); err != nil {
		c.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(c, when); err != nil {
		c.t.Errorf("%s: %v", when, err)
		return
	}
	if got, err := c.lines.ReadString('\n'); strings.TrimSpace(got) != when {
		c.t.Errorf("%s: the connection answers %q, %v", when, got, err)
	}
}

// churn attaches and detaches pods one after the other until it is stopped. Each call must succeed, whatever a packager does
// at the same time. stop says how many there were.
func (h *host) churn(rt *netlab.Runtime) (stop func() int) {
	h.t.Helper()
	pod := h.Node.PodT(h.t, rt.List.Name)
	end, done := make(chan struct{}), make(chan int)
	go func() {
		pods := 0
		defer func() { done <- pods }()
		for {
			select {
			case <-end:
				return
			default:
			}
			att := netlab.Attachment{ContainerID: fmt.Sprintf("churn%d", pods), NetNS: pod.Path}
			if _, err := rt.Add(context.Background(), att); err != nil {
				h.t.Errorf("ADD of pod %d while packages change: %v", pods, err)
				return
			}
			if err := rt.Del(context.Background(), att); err != nil {
				h.t.Errorf("DEL of pod %d while packages change: %v", pods, err)
				return
			}
			pods++
		}
	}()
	return func() int {
		close(end)
		return <-done
	}
}
