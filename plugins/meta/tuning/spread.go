// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// spreads reports that the kernel takes a write to the parameter to every device, and
// to the value for new ones: the parameters of one name in the folders below dir.
func spreads(key string) (dir, name string, ok bool) {
	switch key {
	case "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding": // one variable
		return "net/ipv4/conf", "forwarding", true
	case "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6",
		"net/ipv6/conf/all/addr_gen_mode", "net/ipv6/conf/all/ignore_routes_with_linkdown":
		return "net/ipv6/conf", path.Base(key), true
	}
	return "", "", false
}

// spreadFirst is an order: a parameter of one device comes after the one of all
// devices, which would replace its value.
func spreadFirst(a, b string) int {
	rank := func(key string) int {
		if _, _, ok := spreads(key); ok {
			return 0
		}
		return 1
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

// noteDevices adds to values what the devices have of a parameter that spreads. It
// runs inside the pod's namespace.
func noteDevices(key string, values map[string]string) error {
	dir, name, ok := spreads(key)
	if !ok {
		return nil
	}
	devices, err := os.ReadDir(path.Join(sysctl.Root, dir))
	if err != nil {
		return err
	}
	devices = slices.DeleteFunc(devices, func(e os.DirEntry) bool { return e.Name() == "all" })
	for _, e := range devices {
		p := path.Join(dir, e.Name(), name)
		// A device that goes now needs nothing restored.
		if v, err := sysctl.Get(p); err == nil {
			values[p] = v
		}
	}
	return nil
}
