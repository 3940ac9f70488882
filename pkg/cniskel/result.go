// SPDX-License-Identifier: Apache-2.0

package cniskel

import (
	"encoding/json"
	"io"
	"net"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// printTo writes what r.PrintTo would, byte for byte. For the type of CNI 1.x it does so without reflection and without the map
// that the library sorts the keys by, which together took as long as making the pod's veth pair.
func printTo(w io.Writer, r types.Result) error {
	if newest, ok := r.(*types100.Result); ok && printable(newest) {
		p := printer{b: make([]byte, 0, 1024)}
		p.result(newest)
		_, err := w.Write(p.b)
		return err
	}
	return r.PrintTo(w)
}

// printable leaves to the library what no plugin returns, and its words about it: missing elements, and addresses that are none.
func printable(r *types100.Result) bool {
	ip := func(a net.IP) bool { return len(a) == 0 || len(a) == net.IPv4len || len(a) == net.IPv6len }
	return !slices.Contains(r.Interfaces, nil) &&
		!slices.ContainsFunc(r.IPs, func(c *types100.IPConfig) bool { return c == nil || !ip(c.Gateway) }) &&
		!slices.ContainsFunc(r.Routes, func(t *types.Route) bool { return t == nil || !ip(t.GW) })
}

// printer appends JSON in the library's form: four spaces a level, keys in alphabetical order.
type printer struct {
	b     []byte
	level int
	inner bool // the object or array has an element already
}

const indent = "                                " // as deep as a result goes

func (p *printer) line() { p.b = append(append(p.b, '\n'), indent[:4*p.level]...) }

func (p *printer) open(c byte) {
	p.b = append(p.b, c)
	p.level, p.inner = p.level+1, false
}

func (p *printer) close(c byte) {
	p.level--
	p.line()
	p.b = append(p.b, c)
	p.inner = true
}

// element begins the next element of an array or object.
func (p *printer) element() {
	if p.inner {
		p.b = append(p.b, ',')
	}
	p.inner = true
	p.line()
}

func (p *printer) key(name string) {
	p.element()
	p.b = append(append(append(p.b, '"'), name...), `": `...)
}

// text writes a string, which json escapes where that is needed.
func (p *printer) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(string([]rune(s))) // of valid UTF-8; it cannot fail for a string
			p.b = append(p.b, quoted...)
			return
		}
	}
	p.b = append(append(append(p.b, '"'), s...), '"')
}

func (p *printer) number(name string, v int) {
	p.key(name)
	p.b = strconv.AppendInt(p.b, int64(v), 10)
}

// The following leave a value out that is not set.

func (p *printer) optText(name, v string) {
	if v != "" {
		p.key(name)
		p.text(v)
	}
}

func (p *printer) optNumber(name string, v int) {
	if v != 0 {
		p.number(name, v)
	}
}

func (p *printer) optPointer(name string, v *int) {
	if v != nil {
		p.number(name, *v)
	}
}

func (p *printer) optIP(name string, v net.IP) {
	if len(v) != 0 {
		p.key(name)
		p.text(v.String())
	}
}

func (p *printer) optTexts(name string, list []string) {
	optList(p, name, list, p.text)
}

func optList[T any](p *printer, name string, list []T, one func(T)) {
	if len(list) == 0 {
		return
	}
	p.key(name)
	p.open('[')
	for _, v := range list {
		p.element()
		one(v)
	}
	p.close(']')
}

func (p *printer) result(r *types100.Result) {
	if r.CNIVersion == "" && r.DNS.IsEmpty() && len(r.Interfaces)+len(r.IPs)+len(r.Routes) == 0 {
		p.b = append(p.b, "{}"...)
		return
	}
	p.open('{')
	p.optText("cniVersion", r.CNIVersion)
	if !r.DNS.IsEmpty() {
		p.key("dns")
		p.open('{')
		p.optText("domain", r.DNS.Domain)
		p.optTexts("nameservers", r.DNS.Nameservers)
		p.optTexts("options", r.DNS.Options)
		p.optTexts("search", r.DNS.Search)
		p.close('}')
	}
	optList(p, "interfaces", r.Interfaces, p.device)
	optList(p, "ips", r.IPs, p.address)
	optList(p, "routes", r.Routes, p.route)
	p.close('}')
}

func (p *printer) device(i *types100.Interface) {
	p.open('{')
	p.optText("mac", i.Mac)
	p.optNumber("mtu", i.Mtu)
	p.key("name")
	p.text(i.Name)
	p.optText("pciID", i.PciID)
	p.optText("sandbox", i.Sandbox)
	p.optText("socketPath", i.SocketPath)
	p.close('}')
}

func (p *printer) address(c *types100.IPConfig) {
	p.open('{')
	p.key("address")
	p.text(c.Address.String())
	p.optIP("gateway", c.Gateway)
	p.optPointer("interface", c.Interface)
	p.close('}')
}

func (p *printer) route(r *types.Route) {
	p.open('{')
	p.optNumber("advmss", r.AdvMSS)
	p.key("dst")
	p.text(r.Dst.String())
	p.optIP("gw", r.GW)
	p.optNumber("mtu", r.MTU)
	p.optNumber("priority", r.Priority)
	p.optPointer("scope", r.Scope)
	p.optPointer("table", r.Table)
	p.close('}')
}
