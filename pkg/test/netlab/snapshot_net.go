// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ipJSON runs ip -j and decodes its list.
func ipJSON(into any, args ...string) error {
	out, err := Run("ip", append([]string{"-j"}, args...)...)
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) == "" {
		return nil // older versions print nothing for an empty list
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("decode ip %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func snapLinks() ([]string, error) {
	var links []struct {
		Name     string   `json:"ifname"`
		Flags    []string `json:"flags"`
		MTU      int      `json:"mtu"`
		Master   string   `json:"master"`
		Address  string   `json:"address"`
		Alias    string   `json:"ifalias"`
		Promisc  int      `json:"promiscuity"`
		AllMulti int      `json:"allmulti"`
		XDP      struct {
			Prog struct {
				Name string `json:"name"`
			} `json:"prog"`
		} `json:"xdp"`
		Info struct {
			Kind  string         `json:"info_kind"`
			Slave map[string]any `json:"info_slave_data"`
		} `json:"linkinfo"`
	}
	if err := ipJSON(&links, "-d", "link", "show"); err != nil {
		return nil, err
	}
	var lines []string
	for _, l := range links {
		up := "down"
		if slices.Contains(l.Flags, "UP") {
			up = "up"
		}
		lines = append(lines, fmt.Sprintf("link %s kind=%s %s mtu=%d mac=%s master=%s alias=%q promisc=%d allmulti=%d hairpin=%v isolated=%v",
			l.Name, l.Info.Kind, up, l.MTU, l.Address, l.Master, l.Alias, l.Promisc, l.AllMulti, l.Info.Slave["hairpin"], l.Info.Slave["isolated"]))
		if l.XDP.Prog.Name != "" {
			lines = append(lines, fmt.Sprintf("xdp %s %s", l.Name, l.XDP.Prog.Name))
		}
	}
	return lines, nil
}

func snapAddrs() ([]string, error) {
	var links []struct {
		Name  string `json:"ifname"`
		Addrs []struct {
			Local  string `json:"local"`
			Prefix int    `json:"prefixlen"`
			Scope  string `json:"scope"`
		} `json:"addr_info"`
	}
	if err := ipJSON(&links, "addr", "show"); err != nil {
		return nil, err
	}
	var lines []string
	for _, l := range links {
		for _, a := range l.Addrs {
			lines = append(lines, fmt.Sprintf("addr %s %s/%d scope %s", l.Name, a.Local, a.Prefix, a.Scope))
		}
	}
	return lines, nil
}

// volatileRoute is what ip prints about a route that changes by itself.
var volatileRoute = regexp.MustCompile(` (linkdown|dead|expires \S+)\b`)

func snapRoutes() ([]string, error) {
	var lines []string
	for _, q := range []struct{ kind, args string }{
		{"route", "-4 -o route show table all"},
		{"route", "-6 -o route show table all"},
		{"rule", "-4 -o rule show"},
		{"rule", "-6 -o rule show"},
	} {
		out, err := Run("ip", strings.Fields(q.args)...)
		if err != nil && !strings.Contains(err.Error(), "does not exist") {
			return nil, err
		}
		for _, l := range outputLines(out) {
			lines = append(lines, q.kind+" "+volatileRoute.ReplaceAllString(l, ""))
		}
	}
	return lines, nil
}

// snapNeighs lists static neighbours; learned ones come and go.
func snapNeighs() ([]string, error) {
	out, err := Run("ip", "-o", "neigh", "show", "nud", "permanent")
	return prefixed("neigh", out), err
}

var qdiscRefs = regexp.MustCompile(` refcnt \d+`)

func snapQdiscs() ([]string, error) {
	out, err := Run("tc", "qdisc", "show")
	return outputLines(qdiscRefs.ReplaceAllString(out, "")), err // lines start with "qdisc"
}

// snapFilters asks both hooks of every device that has a qdisc for them.
func snapFilters() ([]string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, i := range ifs {
		for _, hook := range []string{"ingress", "egress"} {
			out, err := Run("tc", "filter", "show", "dev", i.Name, hook)
			if err != nil {
				return nil, err
			}
			lines = append(lines, prefixed("filter "+i.Name+" "+hook, out)...)
		}
	}
	return lines, nil
}

// snapTCX lists programs attached by tcx (6.6); on older kernels there are
// none.
func snapTCX() ([]string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, i := range ifs {
		for hook, attach := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
			res, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: attach})
			if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
				return nil, nil
			}
			if err != nil {
				return nil, fmt.Errorf("query tcx %s of %s: %w", hook, i.Name, err)
			}
			for _, p := range res.Programs {
				name, err := programName(p.ID)
				if err != nil {
					return nil, err
				}
				lines = append(lines, fmt.Sprintf("tcx %s %s %s", i.Name, hook, name))
			}
		}
	}
	return lines, nil
}

func programName(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return "(gone)", nil
	}
	if err != nil {
		return "", fmt.Errorf("program %d: %w", id, err)
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return "", fmt.Errorf("program %d: %w", id, err)
	}
	return info.Name, nil
}

// snapNetfilter reads nftables (which iptables-nft writes too) and, where the
// old tables are loaded in this namespace, iptables-legacy.
func snapNetfilter() ([]string, error) {
	var lines []string
	if _, err := exec.LookPath("nft"); err == nil {
		out, err := Run("nft", "-s", "list", "ruleset")
		if err != nil {
			return nil, err
		}
		lines = append(lines, nftLines(out)...)
	}
	for _, f := range []struct{ names, save string }{
		{"/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"},
		{"/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"},
	} {
		if b, err := os.ReadFile(f.names); err != nil || len(b) == 0 {
			continue
		}
		out, err := Run(f.save)
		if err != nil {
			return nil, err
		}
		for _, l := range outputLines(out) {
			if strings.HasPrefix(l, ":") {
				l, _, _ = strings.Cut(l, " [") // counters
			}
			if !strings.HasPrefix(l, "#") {
				lines = append(lines, "iptables "+f.save+" "+l)
			}
		}
	}
	return lines, nil
}

// nftLines turns nft's nested listing into lines that stand alone:
// "nft table ip nat > chain OUTPUT > rule".
func nftLines(out string) []string {
	var lines, path []string
	for _, l := range outputLines(out) {
		switch {
		case strings.HasPrefix(l, "#"):
		case l == "}":
			path = path[:max(0, len(path)-1)]
		case strings.HasSuffix(l, " {"):
			path = append(path, strings.TrimSuffix(l, " {"))
			lines = append(lines, "nft "+strings.Join(path, " > "))
		default:
			lines = append(lines, "nft "+strings.Join(append(slices.Clone(path), l), " > "))
		}
	}
	return lines
}

// outputLines splits a program's output into trimmed, non-empty lines.
func outputLines(out string) []string {
	var lines []string
	for l := range strings.Lines(out) {
		if l = strings.Join(strings.Fields(strings.ReplaceAll(l, `\`, " ")), " "); l != "" {
			lines = append(lines, l)
		}
	}
	return lines
}

func prefixed(prefix, out string) []string {
	lines := outputLines(out)
	for i := range lines {
		lines[i] = prefix + " " + lines[i]
	}
	return lines
}
