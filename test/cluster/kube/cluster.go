// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// Options say what a cluster is like.
type Options struct {
	// Nodes is how many it has, at least one.
	Nodes int
	// Proxy is kube-proxy's mode.
	Proxy string
	// Plugins are whose the nodes begin with.
	Plugins Plugins
	// Main is the interface plugin of the network: "ptp" or "bridge".
	Main string
	// Chain is what the network's configuration is like: DefaultChain, or FlannelChain.
	Chain string
	// Agent is the routing mode of sluice-agent, which then installs the plugins, writes the configuration and keeps the routes of each node.
	// Empty: this package does that.
	Agent string
	// NetworkPolicy has the agents enforce NetworkPolicy objects.
	NetworkPolicy bool
}

// Agents are the modes of sluice-agent that clusters are made with.
var Agents = []string{"host-gw", "vxlan", "wireguard"}

// Proxies are the modes of kube-proxy that clusters are made with.
var Proxies = []string{"iptables", "nftables"}

// Mains are the interface plugins that clusters are made with.
var Mains = []string{"ptp", "bridge"}

// The chains of plugins. FlannelChain is what flannel's DaemonSet writes: flannel, which calls bridge and host-local, and portmap. Upstream's
// plugins have no flannel. With them the chain begins with bridge, and the configuration that flannel would give it.
const (
	DefaultChain = ""
	FlannelChain = "flannel"
)

// Cluster is a control plane, nodes and an outside machine.
type Cluster struct {
	Options
	Name string
	Dir  string `json:"-"`

	Control *machine.Machine   `json:"-"`
	Node    []*machine.Machine `json:"-"` // Node[0] is "node1"
	Outside *machine.Machine   `json:"-"`
}

const (
	root     = "/run/sluice-cluster"
	specFile = "cluster.json"
)

var names = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

func dirOf(name string) (string, error) {
	if !names.MatchString(name) {
		return "", fmt.Errorf("cluster %q: a name is at most 32 letters, digits and hyphens", name)
	}
	return filepath.Join(root, name), nil
}

// groups is the cgroup of all clusters.
const groups = "sluice-cluster"

// group is the cgroup of a cluster.
func group(name string) string { return groups + "/" + name }

// Open returns a cluster that is up. fs.ErrNotExist: there is none.
func Open(name string) (*Cluster, error) {
	dir, err := dirOf(name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", name, err)
	}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, err
	}
	c.machines()
	return c, nil
}

// machines says where the cluster's machines are; they need not run.
func (c *Cluster) machines() {
	one := func(name string) *machine.Machine {
		return &machine.Machine{Name: name, Dir: filepath.Join(c.Dir, name), Group: group(c.Name) + "/" + name}
	}
	c.Control, c.Outside = one("control"), one("outside")
	c.Node = nil
	for i := range c.Nodes {
		c.Node = append(c.Node, one(nodeName(i)))
	}
}

// All are the cluster's machines.
func (c *Cluster) All() []*machine.Machine {
	return append([]*machine.Machine{c.Control, c.Outside}, c.Node...)
}

// Machine returns a machine by its name.
func (c *Cluster) Machine(name string) (*machine.Machine, error) {
	for _, m := range c.All() {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("cluster %s has no machine %q", c.Name, name)
}

// Down removes a cluster, or what a part of it that was made has left. There need be none.
func Down(name string) error {
	dir, err := dirOf(name)
	if err != nil {
		return err
	}
	// By what is in the folder, not by a description that may never have been written.
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var ends []func() error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		m, err := machine.Load(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		ends = append(ends, m.Kill)
	}
	if err := together(ends...); err != nil {
		return err
	}
	return errors.Join(machine.RemoveGroups(group(name)), machine.RemoveEmptyGroup(groups), os.RemoveAll(dir))
}

// Clusters lists the names of those that are up or have left something.
func Clusters() ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, err
}

// Kubeconfig is that of the user who may do everything. Its server is reached from the control machine and the nodes.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "pki", "admin.kubeconfig") }

// Config is for clients in this process: their connections start in the control machine.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.Dial = Dialer(c.Control)
	config.QPS, config.Burst = 200, 400
	return config, nil
}

// Client is a client of Config.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Dialer returns what opens connections of this process from a machine.
func Dialer(m *machine.Machine) func(ctx context.Context, network, address string) (net.Conn, error) {
	return dialIn(func() (*netns.NS, error) { return Netns(m) })
}

// PodDialer returns what opens connections of this process from the pod of a node that has an address.
func (c *Cluster) PodDialer(ctx context.Context, i int, addr netip.Addr) (func(ctx context.Context, network, address string) (net.Conn, error), error) {
	out, err := c.Node[i].RunWith(ctx, `for ns in /run/netns/*; do
  if ip -n "${ns##*/}" -o addr | grep -qwF "$1"; then echo "$ns"; fi
done`, "sh", "-eus", addr.String())
	if err != nil {
		return nil, err
	}
	found := strings.Fields(out)
	if len(found) != 1 {
		return nil, fmt.Errorf("%s: pods with the address %s: %q, want one", c.Node[i].Name, addr, found)
	}
	return dialIn(func() (*netns.NS, error) {
		pid, err := c.Node[i].PID()
		if err != nil {
			return nil, err
		}
		return netns.Open(fmt.Sprintf("/proc/%d/root%s", pid, found[0]))
	}), nil
}

// dialIn returns what opens connections in the namespace that open returns.
func dialIn(open func() (*netns.NS, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		ns, err := open()
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// Netns is a machine's network namespace. The caller must close it.
func Netns(m *machine.Machine) (*netns.NS, error) {
	pid, err := m.PID()
	if err != nil {
		return nil, err
	}
	return netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// together runs all of them at once and returns their errors.
func together(steps ...func() error) error {
	errs := make([]error, len(steps))
	var all sync.WaitGroup
	for i, step := range steps {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = step()
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}

// openPKI makes the keys of the cluster and the kubeconfig of the user who may do everything.
func (c *Cluster) makePKI() (*kubetest.PKI, error) {
	pki, err := kubetest.NewPKI(filepath.Join(c.Dir, "pki"), kubetest.ServiceNames(), serverAddrs())
	if err != nil {
		return nil, err
	}
	_, err = pki.Kubeconfig("admin", serverURL(), "admin", kubetest.Masters)
	return pki, err
}
