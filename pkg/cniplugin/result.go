// SPDX-License-Identifier: Apache-2.0

package cniplugin

import (
	"encoding/json"
	"io"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// printResult writes what PrintTo of the result does, byte for byte. The
// library encodes a result of the newest type, decodes it into maps to take
// "dns" out, and encodes these: with all that package json learns of these types
// on the way, it is a fortieth of an ADD. The maps are made here at once.
func printResult(w io.Writer, result types.Result) error {
	r, ok := result.(*types100.Result)
	if !ok {
		return result.PrintTo(w)
	}
	m, ok := resultMap(r)
	if !ok {
		return r.PrintTo(w)
	}
	b, err := json.MarshalIndent(m, "", "    ")
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// object is a JSON object; its keys are printed in alphabetical order.
type object map[string]any

// put leaves out what is empty.
func put[T comparable](o object, key string, v T) {
	var zero T
	if v != zero {
		o[key] = v
	}
}

func putList[T any](o object, key string, list []T) {
	if len(list) > 0 {
		o[key] = list
	}
}

func putNumber(o object, key string, v *int) {
	if v != nil {
		o[key] = *v
	}
}

// resultMap is false for what cannot be, which is left to the library.
func resultMap(r *types100.Result) (object, bool) {
	o := object{}
	put(o, "cniVersion", r.CNIVersion)
	interfaces, ok1 := objects(r.Interfaces, interfaceMap)
	ips, ok2 := objects(r.IPs, ipMap)
	routes, ok3 := objects(r.Routes, routeMap)
	putList(o, "interfaces", interfaces)
	putList(o, "ips", ips)
	putList(o, "routes", routes)
	if !r.DNS.IsEmpty() {
		dns := object{}
		putList(dns, "nameservers", r.DNS.Nameservers)
		put(dns, "domain", r.DNS.Domain)
		putList(dns, "search", r.DNS.Search)
		putList(dns, "options", r.DNS.Options)
		o["dns"] = dns
	}
	return o, ok1 && ok2 && ok3
}

func objects[T any](list []*T, encode func(*T) (object, bool)) ([]object, bool) {
	out := make([]object, 0, len(list))
	for _, v := range list {
		if v == nil {
			return nil, false
		}
		o, ok := encode(v)
		if !ok {
			return nil, false
		}
		out = append(out, o)
	}
	return out, true
}

func interfaceMap(i *types100.Interface) (object, bool) {
	o := object{"name": i.Name}
	put(o, "mac", i.Mac)
	put(o, "mtu", i.Mtu)
	put(o, "sandbox", i.Sandbox)
	put(o, "socketPath", i.SocketPath)
	put(o, "pciID", i.PciID)
	return o, true
}

func ipMap(i *types100.IPConfig) (object, bool) {
	o := object{"address": i.Address.String()}
	putNumber(o, "interface", i.Interface)
	return o, putIP(o, "gateway", i.Gateway)
}

func routeMap(r *types.Route) (object, bool) {
	o := object{"dst": r.Dst.String()}
	put(o, "mtu", r.MTU)
	put(o, "advmss", r.AdvMSS)
	put(o, "priority", r.Priority)
	putNumber(o, "table", r.Table)
	putNumber(o, "scope", r.Scope)
	return o, putIP(o, "gw", r.GW)
}

// putIP is false for an address of a length that no family has.
func putIP(o object, key string, ip net.IP) bool {
	if len(ip) == 0 {
		return true
	}
	o[key] = ip.String()
	return len(ip) == net.IPv4len || len(ip) == net.IPv6len
}
