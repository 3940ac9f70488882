// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// Programs are those that a cluster consists of.
func Programs() []string {
	return []string{
		kubebin.Etcd, kubebin.APIServer, kubebin.Kubectl, kubebin.Kubelet, kubebin.ControllerManager, kubebin.Scheduler, kubebin.Proxy,
		kubebin.Agnhost,
	}
}

// sharedBin is where machines see the programs.
const sharedBin = machine.Shared + "/bin"

// Up makes a cluster and returns when its nodes are ready. What fails removes what was made. Building programs is the caller's business.
func Up(ctx context.Context, name string, o Options) (_ *Cluster, err error) {
	dir, err := dirOf(name)
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cluster %s is up, or has left something: take it down first", name)
	} else if err != nil {
		return nil, err
	}
	c := &Cluster{Options: o, Name: name, Dir: dir}
	defer func() { // by c, not by what is returned, which is nil then
		if err != nil {
			err = errors.Join(err, c.logs(), Down(name))
		}
	}()
	c.machines()
	if err := c.makeAll(ctx); err != nil {
		return nil, err
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return c, os.WriteFile(filepath.Join(dir, specFile), spec, 0o600)
}

func (o Options) check() error {
	switch {
	case o.Nodes < 1 || o.Nodes > 9:
		return fmt.Errorf("%d nodes: a cluster has 1 to 9", o.Nodes)
	case !slices.Contains(Proxies, o.Proxy):
		return fmt.Errorf("kube-proxy's mode %q is none of %v", o.Proxy, Proxies)
	case !slices.Contains(Mains, o.Main):
		return fmt.Errorf("interface plugin %q is none of %v", o.Main, Mains)
	case !slices.Contains(AllPlugins, o.Plugins):
		return fmt.Errorf("plugins %q are none of %v", o.Plugins, AllPlugins)
	case o.Agent != "" && !slices.Contains(Agents, o.Agent):
		return fmt.Errorf("the agent's mode %q is none of %v", o.Agent, Agents)
	case o.Chain != DefaultChain && o.Chain != FlannelChain:
		return fmt.Errorf("chain %q is none of %q", o.Chain, []string{DefaultChain, FlannelChain})
	case o.Chain != DefaultChain && o.Agent != "":
		return fmt.Errorf("the agent writes its own chain, not that of %s", o.Chain)
	case o.NetworkPolicy && o.Agent == "":
		return errors.New("network policies need sluice-agent")
	case o.Agent != "" && o.Plugins != Sluice:
		return fmt.Errorf("the agent installs %s, not %s", Sluice, o.Plugins)
	}
	return nil
}

func (c *Cluster) makeAll(ctx context.Context) error {
	bin, err := kubebin.Dir()
	if err != nil {
		return err
	}
	pki, err := c.makePKI()
	if err != nil {
		return err
	}
	var launches []func() error
	for _, m := range c.All() {
		m.Share = map[string]string{bin: sharedBin}
		launches = append(launches, func() error { return m.Launch(ctx) })
	}
	if err := together(launches...); err != nil {
		return err
	}
	if err := c.wire(ctx); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	images, err := c.makeImages(ctx, bin)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	steps := []func() error{func() error { return c.startControl(ctx, pki) }}
	for i := range c.Node {
		steps = append(steps, func() error { return c.startRuntime(ctx, i, images) })
	}
	steps = append(steps, c.preparePlugins)
	if err := together(steps...); err != nil {
		return err
	}
	if c.Agent != "" {
		if err := c.allowAgent(ctx); err != nil {
			return err
		}
	}
	steps = nil
	for i := range c.Node {
		steps = append(steps, func() error { return c.joinNode(ctx, pki, i) })
	}
	return together(steps...)
}

// wire joins the machines by a bridge in the control machine. Pods of a node are routed by the node's address once it has a network.
func (c *Cluster) wire(ctx context.Context) error {
	lines := "ip link add lan type bridge\nip link set lan up\n"
	for _, a := range ControlAddrs() {
		lines += "ip addr add " + onLAN(a) + " dev lan nodad\n"
	}
	if _, err := c.Control.Shell(ctx, strings.ReplaceAll(lines, onLAN(ControlAddrs()[0])+" dev lan nodad", onLAN(ControlAddrs()[0])+" dev lan")); err != nil {
		return err
	}
	if err := c.plug(ctx, c.Outside, outsideHost); err != nil {
		return err
	}
	for i, m := range c.Node {
		if err := c.plug(ctx, m, firstNode+i); err != nil {
			return err
		}
	}
	return nil
}

// plug gives a machine its device on the Ethernet. The machine's number is in its addresses and in its MAC, so both outlive a reboot.
func (c *Cluster) plug(ctx context.Context, m *machine.Machine, number int) error {
	control, err := c.Control.PID()
	if err != nil {
		return err
	}
	pid, err := m.PID()
	if err != nil {
		return err
	}
	// Both ends are made where they belong: the real machine's namespace has neither, not for a moment.
	if out, err := command(ctx, "ip", "link", "add", portOf(m), "netns", fmt.Sprint(control), "type", "veth",
		"peer", "name", "eth0", "address", fmt.Sprintf("02:00:00:00:00:%02x", number), "netns", fmt.Sprint(pid)); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if _, err := c.Control.Run(ctx, "ip", "link", "set", portOf(m), "master", "lan", "up"); err != nil {
		return err
	}
	addrs := host(number)
	lines := fmt.Sprintf("ip link set eth0 up\nip addr add %s dev eth0\nip addr add %s dev eth0 nodad\n", onLAN(addrs[0]), onLAN(addrs[1]))
	if m != c.Outside {
		lines += fmt.Sprintf("ip route add default via %s\nip -6 route add default via %s\n", ControlAddrs()[0], ControlAddrs()[1])
		lines += "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n"
	}
	_, err = m.Shell(ctx, lines)
	return err
}

// portOf is a machine's port of the bridge.
func portOf(m *machine.Machine) string { return "to-" + m.Name }

// startControl starts etcd, the API server, and what makes pods of Deployments and gives them to nodes.
func (c *Cluster) startControl(ctx context.Context, pki *kubetest.PKI) error {
	// The machine sees the keys in its own folder.
	inside := filepath.Join(c.Control.Dir, "pki")
	if err := os.CopyFS(inside, os.DirFS(pki.Dir)); err != nil {
		return err
	}
	seen := &kubetest.PKI{Dir: machine.Shared + "/pki"}
	api := append([]string{sharedBin + "/kube-apiserver"}, kubetest.APIServerArgs(seen, ControlAddrs()[0], Services)...)
	api = append(api, "--enable-admission-plugins", "NodeRestriction", "--kubelet-preferred-address-types", "InternalIP",
		"--kubelet-client-certificate", seen.File("kubelet-client.crt"), "--kubelet-client-key", seen.File("kubelet-client.key"))
	start := func(name string, args []string) error {
		s := machine.Service{Name: name, Args: args}
		return errors.Join(saveService(c.Control, s), c.Control.StartService(s))
	}
	if err := errors.Join(start(kubebin.Etcd, append([]string{sharedBin + "/etcd"}, kubetest.EtcdArgs("/var/lib/etcd")...)), start(kubebin.APIServer, api)); err != nil {
		return err
	}
	if err := c.WaitAPI(ctx); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		args []string
	}{
		{kubebin.ControllerManager, []string{
			"--allocate-node-cidrs", "--cluster-cidr", list(Pods), "--service-cluster-ip-range", list(Services),
			"--node-cidr-mask-size-ipv4", "24", "--node-cidr-mask-size-ipv6", "64", "--root-ca-file", seen.File("ca.crt"),
			"--service-account-private-key-file", seen.File("sa.key"), "--use-service-account-credentials", "--node-monitor-grace-period", "20s",
		}},
		{kubebin.Scheduler, nil},
	} {
		config, err := pki.Kubeconfig(s.name, serverURL(), "system:"+s.name)
		if err != nil {
			return err
		}
		if err := copyFile(config, filepath.Join(inside, filepath.Base(config))); err != nil {
			return err
		}
		args := append([]string{sharedBin + "/" + s.name, "--kubeconfig", seen.File(filepath.Base(config)), "--leader-elect=false"}, s.args...)
		if err := start(s.name, args); err != nil {
			return err
		}
	}
	return nil
}

// saveService keeps how a service was started, for Restart.
func saveService(m *machine.Machine, s machine.Service) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.Dir, "service-"+s.Name+".json"), data, 0o600)
}

// Restart starts a service of the control machine after a stop, as it was started before.
func (c *Cluster) Restart(service string) error {
	data, err := os.ReadFile(filepath.Join(c.Control.Dir, "service-"+service+".json"))
	if err != nil {
		return err
	}
	var s machine.Service
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	return c.Control.StartService(s)
}

// WaitAPI returns when the API server is ready.
func (c *Cluster) WaitAPI(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return Poll(ctx, time.Minute, "the API server is ready", func(ctx context.Context) error {
		return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// logs are the ends of what a cluster that failed has written.
func (c *Cluster) logs() error {
	var all []error
	for _, m := range c.All() {
		names, err := filepath.Glob(filepath.Join(m.Dir, "log", "*.log"))
		if err != nil {
			return err
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if len(data) > 0 {
				all = append(all, fmt.Errorf("--- %s %s:\n%s", m.Name, filepath.Base(name), data[max(0, len(data)-1500):]))
			}
		}
	}
	return errors.Join(all...)
}
