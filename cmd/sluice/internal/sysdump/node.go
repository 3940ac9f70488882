// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// Node are the parts that are taken from the node itself.
func Node(c *nodeconf.Config) []Part {
	parts := []Part{
		Command("kernel/uname", "uname", "-a"),
		File("kernel/version", "/proc/version"),
		File("kernel/cmdline", "/proc/cmdline"),
		File("kernel/modules", "/proc/modules"),
		File("kernel/os-release", "/etc/os-release"),
		Command("kernel/dmesg", "sh", "-c", "dmesg | tail -n 500"),
		File("kernel/mountinfo", "/proc/self/mountinfo"),
		sysctls("kernel/sysctls"),
		File("config/config.json", nodeconf.DefaultPath),
		records("records", attachments.DefaultDir),
		listing("state/files", "/run/sluice", "/sys/fs/bpf/sluice", "/var/lib/cni"),
		Command("net/link", "ip", "-d", "-s", "link", "show"),
		Command("net/addr", "ip", "addr", "show"),
		Command("net/route4", "ip", "-4", "route", "show", "table", "all"),
		Command("net/route6", "ip", "-6", "route", "show", "table", "all"),
		Command("net/rule4", "ip", "-4", "rule", "show"),
		Command("net/rule6", "ip", "-6", "rule", "show"),
		Command("net/neigh", "ip", "neigh", "show"),
		Command("net/netns", "ip", "netns", "list-id"),
		Command("net/bridge", "bridge", "-d", "link", "show"),
		Command("net/bridge-vlan", "bridge", "vlan", "show"),
		Command("net/qdisc", "tc", "-s", "qdisc", "show"),
		filters("net/filters"),
		Command("net/bpftool-net", "bpftool", "net", "show"),
		Command("net/bpftool-prog", "bpftool", "prog", "show"),
		Command("net/bpftool-link", "bpftool", "link", "show"),
		Command("net/bpftool-cgroup", "bpftool", "cgroup", "tree"),
		Command("netfilter/nft", "nft", "list", "ruleset"),
	}
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		parts = append(parts, Command("netfilter/"+tool, tool))
	}
	if c != nil && c.Log.File != "" {
		parts = append(parts, File("log/plugins", c.Log.File))
	}
	return parts
}

// sysctls are those that decide about packets.
func sysctls(name string) Part {
	globs := []string{
		"net/ipv4/ip_forward", "net/ipv4/ip_local_*", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/route_localnet",
		"net/ipv4/conf/*/accept_local", "net/ipv4/conf/*/arp_*", "net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/accept_ra", "net/ipv6/conf/*/disable_ipv6",
		"net/bridge/*", "net/netfilter/nf_conntrack_*", "net/core/bpf_*", "net/core/*_qdisc", "net/core/netdev_max_backlog", "kernel/unprivileged_bpf_disabled",
	}
	return Part{name, func(context.Context) ([]byte, error) {
		var b strings.Builder
		var errs []error
		for _, g := range globs {
			files, _ := filepath.Glob("/proc/sys/" + g) // the patterns are right
			for _, f := range files {
				raw, err := os.ReadFile(f)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, err)
				}
				if err == nil {
					fmt.Fprintf(&b, "%s = %s\n", strings.TrimPrefix(f, "/proc/sys/"), strings.TrimSpace(string(raw)))
				}
			}
		}
		return []byte(b.String()), errors.Join(errs...)
	}}
}

// records are the attachment records, one after the other.
func records(name, dir string) Part {
	return Part{name, func(context.Context) ([]byte, error) {
		files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		var b strings.Builder
		var errs []error
		for _, f := range files {
			raw, err := os.ReadFile(f)
			errs = append(errs, err)
			fmt.Fprintf(&b, "# %s\n%s\n", f, raw)
		}
		return []byte(b.String()), errors.Join(errs...)
	}}
}

// listing names the files below directories, not what is in them.
func listing(name string, roots ...string) Part {
	return Part{name, func(context.Context) ([]byte, error) {
		var b strings.Builder
		var errs []error
		for _, root := range roots {
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					if !errors.Is(err, fs.ErrNotExist) {
						errs = append(errs, err)
					}
					return nil
				}
				if st, err := d.Info(); err == nil {
					fmt.Fprintf(&b, "%s %8d %s %s\n", st.Mode(), st.Size(), st.ModTime().UTC().Format("2006-01-02T15:04:05Z"), path)
				}
				return nil
			})
			errs = append(errs, err)
		}
		return []byte(b.String()), errors.Join(errs...)
	}}
}

// filters are the filters of each device.
func filters(name string) Part {
	const script = `for d in /sys/class/net/*; do d=${d##*/}; for h in ingress egress; do echo "## $d $h"; tc -s filter show dev "$d" $h; done; done`
	return Part{name, func(ctx context.Context) ([]byte, error) {
		return Command(name, "sh", "-c", script).Make(ctx)
	}}
}
