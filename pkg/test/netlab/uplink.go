// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// Run executes a program with the calling thread's namespaces and returns its
// standard output. The error carries the program's words.
func Run(name string, args ...string) (string, error) {
	return runInput("", name, args...)
}

func runInput(stdin, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// ipBatch runs ip(8) lines in the calling thread's namespace; the first bad
// line ends it.
func ipBatch(lines ...string) error {
	_, err := runInput(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
	return err
}

func linkUp(dev string) error { return ipBatch("link set " + dev + " up") }

// prepareClient makes a client's namespace quick and quiet: addresses usable
// at once, none from router advertisements. The node is left as the kernel
// makes it, since that is where plugins have to live.
func prepareClient() error {
	for key, value := range map[string]string{
		"net/ipv6/conf/all/accept_dad":     "0",
		"net/ipv6/conf/default/accept_dad": "0",
		"net/ipv6/conf/default/accept_ra":  "0",
	} {
		if err := writeSysctl(key, value); err != nil {
			return err
		}
	}
	return nil
}

// joinUplink makes the veth between the node and c, with its addresses.
func joinUplink(node *NS, c *Client) error {
	mtu := ""
	if c.Uplink.MTU != 0 {
		mtu = fmt.Sprintf(" mtu %d", c.Uplink.MTU)
	}
	if err := node.Do(func() error {
		if err := ipBatch(fmt.Sprintf("link add %s%s type veth peer name eth0%s netns %s", c.Uplink.Name, mtu, mtu, c.ProcPath())); err != nil {
			return err
		}
		// A node that runs pods has had its uplink for long: its link-local
		// address is proven. All else of the node is left as the kernel makes it.
		if err := writeSysctl("net/ipv6/conf/"+c.Uplink.Name+"/accept_dad", "0"); err != nil {
			return err
		}
		return ipBatch(deviceLines(c.Uplink.Name, c.Uplink.Node)...)
	}); err != nil {
		return fmt.Errorf("uplink %s: %w", c.Uplink.Name, err)
	}
	if err := c.Do(func() error { return ipBatch(deviceLines("eth0", c.Uplink.Client)...) }); err != nil {
		return fmt.Errorf("uplink %s, client end: %w", c.Uplink.Name, err)
	}
	return node.Do(func() error { return awaitIPv6(c.Uplink.Name) })
}

// AwaitIPv6 waits until the kernel has taken the IPv6 addresses of devices that
// are up into use, the link-local one too: from then on snapshots agree.
func (n *NS) AwaitIPv6(devs ...string) error {
	return n.Do(func() error {
		for _, dev := range devs {
			if err := awaitIPv6(dev); err != nil {
				return err
			}
		}
		return nil
	})
}

// SetMaxSegmentIPv4 has both ends of each uplink take segments of TCP over IPv4 of that many bytes (BIG TCP, Linux 6.3).
func (l *Lab) SetMaxSegmentIPv4(size int) error {
	set := func(dev string) func() error {
		return func() error {
			link, err := netlink.LinkByName(dev)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetGSOIPv4MaxSize(link, size), netlink.LinkSetGROIPv4MaxSize(link, size))
		}
	}
	var errs []error
	for _, c := range l.Clients {
		errs = append(errs, l.Node.Do(set(c.Uplink.Name)), c.Do(set("eth0")))
	}
	return errors.Join(errs...)
}

// awaitIPv6 waits until the kernel has taken dev's IPv6 addresses, the
// link-local one too, into use, which it does in its own time.
func awaitIPv6(dev string) error {
	for deadline := time.Now().Add(Patient(5 * time.Second)); ; time.Sleep(time.Millisecond) {
		addrs, err := Run("ip", "-6", "-o", "addr", "show", "dev", dev)
		if err != nil {
			return err
		}
		routes, err := Run("ip", "-6", "route", "show", "table", "local", "type", "local", "dev", dev)
		if err != nil {
			return err
		}
		if n := strings.Count(addrs, "inet6"); strings.Contains(addrs, "fe80:") && strings.Count(routes, "local ") >= n {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: IPv6 does not come up: %s%s", dev, addrs, routes)
		}
	}
}

func deviceLines(dev string, addrs []netip.Prefix) []string {
	lines := []string{"link set " + dev + " up"}
	for _, a := range addrs {
		nodad := ""
		if a.Addr().Is6() {
			nodad = " nodad"
		}
		lines = append(lines, fmt.Sprintf("addr add %s dev %s%s", a, dev, nodad))
	}
	return lines
}

// defaultRoutes adds a default route for each family that gateways has.
func (n *NS) defaultRoutes(dev string, gateways []netip.Prefix) error {
	var lines []string
	for _, gw := range []netip.Addr{IP4(gateways), IP6(gateways)} {
		if gw.IsValid() {
			lines = append(lines, fmt.Sprintf("route add default via %s dev %s", gw, dev))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return n.Do(func() error { return ipBatch(lines...) })
}

func (n *Node) setForwarding(v4, v6 bool) error {
	return n.Do(func() error {
		// "Off" has to be written too: a network namespace is born with the
		// host's IPv4 forwarding (net.core.devconf_inherit_init_net).
		return errors.Join(
			writeSysctl("net/ipv4/ip_forward", flag(v4)),
			writeSysctl("net/ipv6/conf/all/forwarding", flag(v6)))
	})
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// WriteSysctl sets a key of the node, given as a path below /proc/sys.
func (n *NS) WriteSysctl(key, value string) error {
	return n.Do(func() error { return writeSysctl(key, value) })
}

// ReadSysctl returns a key's value without the line end.
func (n *NS) ReadSysctl(key string) (value string, err error) {
	err = n.Do(func() error {
		value, err = readSysctl(key)
		return err
	})
	return value, err
}

func writeSysctl(key, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0)
}

func readSysctl(key string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys", key))
	return strings.TrimSuffix(string(b), "\n"), err
}
