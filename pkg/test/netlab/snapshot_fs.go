// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// snapRoots are the trees a plugin may write to. /etc/sluice and /etc/cni are
// the operator's and only read.
var snapRoots = []string{"/run", "/var/lib/cni", "/sys/fs/bpf", "/etc/sluice", "/etc/cni"}

// snapFiles lists paths only: contents such as a last-used address may change.
func snapFiles() ([]string, error) {
	var lines []string
	for _, root := range snapRoots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil // gone between listing and looking
			}
			if err != nil {
				return err
			}
			switch path {
			case KeepDir, netnsDir: // the lab's own
				return fs.SkipDir
			case root:
				return nil
			}
			if d.IsDir() {
				path += "/"
			}
			lines = append(lines, "file "+path)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// snapSysctls reads the keys that CNI plugins change on a node.
func snapSysctls() ([]string, error) {
	var lines []string
	for _, glob := range []string{
		"net/ipv4/ip_forward",
		"net/ipv4/ip_local_reserved_ports",
		"net/ipv4/conf/*/forwarding",
		"net/ipv4/conf/*/route_localnet",
		"net/ipv6/conf/*/forwarding",
	} {
		paths, err := filepath.Glob(filepath.Join("/proc/sys", glob))
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			key := strings.TrimPrefix(p, "/proc/sys/")
			value, err := readSysctl(key)
			if errors.Is(err, os.ErrNotExist) {
				continue // its device went away
			}
			if err != nil {
				return nil, err
			}
			lines = append(lines, "sysctl "+key+"="+value)
		}
	}
	return lines, nil
}
