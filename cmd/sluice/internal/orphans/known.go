// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/mountinfo"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Places are where runtimes and IPAM keep what they know.
type Places struct {
	Caches   []string // directories of libcni's results
	Networks []string // data directories of host-local
}

// DefaultPlaces are those of containerd, CRI-O, podman and nerdctl (libcni's
// own), and of Multus; and host-local's.
func DefaultPlaces() Places {
	return Places{
		Caches:   []string{"/var/lib/cni/results", "/var/lib/cni/multus/results"},
		Networks: []string{"/var/lib/cni/networks"},
	}
}

// Look collects what is known to be alive.
func Look(records []*attachments.Record, p Places) (Known, error) {
	k := Known{Addrs: make(map[netip.Addr]string)}
	var errs []error
	for _, r := range records {
		k.Attachments = append(k.Attachments, Attachment{
			Ref: r.ID, Netns: r.NetNS, State: stateOf(r.NetNS), Record: true, From: "record", Addrs: recordedAddrs(r),
		})
	}
	cached := 0
	for _, dir := range p.Caches {
		found, err := readCache(dir)
		errs = append(errs, err)
		cached += len(found)
		k.Attachments = append(k.Attachments, found...)
	}
	for _, dir := range p.Networks {
		found, err := readReserved(dir)
		errs = append(errs, err)
		k.Reserved = append(k.Reserved, found...)
	}
	errs = append(errs, k.lookInside())
	k.Looked = fmt.Sprintf("%d records in %s, %d attachments in %s, %d reservations in %s, %d other network namespaces",
		len(records), attachments.DefaultDir, cached, strings.Join(p.Caches, " and "), len(k.Reserved), strings.Join(p.Networks, " and "), k.Namespaces)
	return k, errors.Join(errs...)
}

// stateOf looks at the path of a network namespace. One that is not a namespace
// any more is as gone as one that does not exist.
func stateOf(path string) State {
	if path == "" {
		return Unknown
	}
	var st unix.Statfs_t
	switch err := unix.Statfs(path, &st); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ESRCH):
		return Dead
	case err != nil:
		return Unknown
	case st.Type == unix.NSFS_MAGIC, st.Type == unix.PROC_SUPER_MAGIC:
		return Alive
	}
	return Dead
}

// recordedAddrs finds the addresses in a record, whatever its plugins call them.
func recordedAddrs(r *attachments.Record) []netip.Addr {
	var out []netip.Addr
	for _, s := range r.Plugins {
		var v any
		if json.Unmarshal(s.Data, &v) == nil {
			out = addrsIn(v, out)
		}
	}
	return out
}

func addrsIn(v any, out []netip.Addr) []netip.Addr {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if k != "gateway" && k != "gw" && k != "hostIP" {
				out = addrsIn(e, out)
			}
		}
	case []any:
		for _, e := range v {
			out = addrsIn(e, out)
		}
	case string:
		a, err := netip.ParseAddr(v)
		if err != nil {
			p, perr := netip.ParsePrefix(v)
			if perr != nil {
				return out
			}
			a = p.Addr()
		}
		if !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// readCache reads a directory of libcni (github.com/containernetworking/cni,
// libcni/api.go, cachedInfo). Where the attachment was is in the result, or,
// since 1.3, said apart. A file that cannot be read as such stands for a
// container that may be alive, by its name.
func readCache(dir string) ([]Attachment, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Attachment
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || e.IsDir() {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a, err := parseCached(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		a.From = path
		out = append(out, a)
	}
	return out, errors.Join(errs...)
}

func parseCached(raw []byte) (Attachment, error) {
	var c struct {
		ContainerID, IfName, NetworkName, Netns string
		Result                                  struct {
			Interfaces []struct{ Name, Sandbox string }
			IPs        []struct{ Address string }
			IP4, IP6   struct{ IP string }
		}
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Attachment{}, err
	}
	if c.ContainerID == "" {
		return Attachment{}, errors.New("names no container")
	}
	a := Attachment{Ref: attachments.ID{Network: c.NetworkName, ContainerID: c.ContainerID, IfName: c.IfName}, Netns: c.Netns}
	for _, i := range c.Result.Interfaces {
		if a.Netns == "" && i.Name == c.IfName && strings.HasPrefix(i.Sandbox, "/") {
			a.Netns = i.Sandbox
		}
	}
	texts := []string{c.Result.IP4.IP, c.Result.IP6.IP}
	for _, ip := range c.Result.IPs {
		texts = append(texts, ip.Address)
	}
	for _, s := range texts {
		if p, err := netip.ParsePrefix(s); err == nil {
			a.Addrs = append(a.Addrs, p.Addr())
		}
	}
	a.State = stateOf(a.Netns)
	return a, nil
}

// readReserved reads host-local's files: named as the address, the container in
// the first line and the interface in the second.
func readReserved(dir string) ([]Reserved, error) {
	networks, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Reserved
	var errs []error
	for _, n := range networks {
		files, err := os.ReadDir(filepath.Join(dir, n.Name()))
		if err != nil && n.IsDir() {
			errs = append(errs, err)
		}
		for _, f := range files {
			addr, err := netip.ParseAddr(f.Name())
			if err != nil {
				continue // last_reserved_ip.0, lock
			}
			path := filepath.Join(dir, n.Name(), f.Name())
			raw, err := os.ReadFile(path)
			if err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, err)
				}
				continue
			}
			id, ifname, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n")
			out = append(out, Reserved{n.Name(), strings.TrimSpace(id), strings.TrimSpace(ifname), addr, path})
		}
	}
	return out, errors.Join(errs...)
}

// lookInside collects the addresses of every network namespace that a process or
// a mount holds, our own too. One that goes while we look is none.
func (k *Known) lookInside() error {
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer own.Close()
	seen := make(map[uint64]bool)
	for _, path := range namespacePaths() {
		ns, err := netns.Open(path)
		if err != nil {
			continue
		}
		if inode := ns.Inode(); !seen[inode] {
			seen[inode] = true
			if k.addAddrs(ns, path) == nil && inode != own.Inode() {
				k.Namespaces++
			}
		}
		ns.Close()
	}
	return k.addAddrs(own, "the node's own network namespace")
}

func (k *Known) addAddrs(ns *netns.NS, where string) error {
	h, err := rtnl.NewIn(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	addrs, err := h.Addrs(rtnl.FamilyAll)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if ip := a.Prefix.Addr(); !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			k.Addrs[ip] = where
		}
	}
	return nil
}

// namespacePaths are the places where network namespaces are held: by mounts,
// then by processes, each namespace of those once.
func namespacePaths() []string {
	var out []string
	raw, _ := os.ReadFile("/proc/thread-self/mountinfo") // without it the processes are left
	for line := range strings.Lines(string(raw)) {
		mount, kind, ok := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if ok && len(fields) > 4 && strings.HasPrefix(kind, "nsfs ") && strings.HasPrefix(fields[3], "net:") {
			out = append(out, mountinfo.Unescape(fields[4]))
		}
	}
	seen := make(map[string]bool)
	processes, _ := filepath.Glob("/proc/[0-9]*/ns/net") // the pattern is right
	for _, path := range processes {
		if inode, err := os.Readlink(path); err == nil && !seen[inode] {
			seen[inode] = true
			out = append(out, path)
		}
	}
	return out
}
