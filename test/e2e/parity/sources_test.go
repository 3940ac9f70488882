// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// source is a call in which two sources give one value. The first is "placeholder", or what else is not valid.
type source struct {
	key, by string         // what is replaced, and what by
	plugins string         // of the list, JSON
	caps    map[string]any // runtimeConfig
	args    string         // CNI_ARGS: KEY=VALUE
	see     func(*e2etest.Pod) string
}

// sources are the keys of all plugins whose value a later source replaces. What it replaces need not be valid, if upstream does not
// want it to be.
func sources() parityCase {
	const (
		bridge = `{"type":"bridge","bridge":"cni9"},`
		static = `{"type":"bridge","bridge":"cni9","capabilities":{"ips":true},"ipam":{"type":"static"%s}%s}`
		onMAC  = `"capabilities":{"mac":true}`
	)
	mac, ips := map[string]any{"mac": "02:00:00:00:00:42"}, map[string]any{"ips": []string{"10.9.7.7/16"}}
	limit := map[string]any{"bandwidth": map[string]any{"ingressRate": 0, "ingressBurst": 8}}
	address := func(p *e2etest.Pod) string { return p.IP4.String() }
	hardware := (*e2etest.Pod).MAC
	c := parityCase{
		group: "a value that another source replaces",
		build: func(s *stage) { e2etest.MustRun(s.T, s.Node, "ip link add spare type veth peer name other") },
	}
	for _, from := range []source{
		{"addresses of static", "runtimeConfig.ips", fmt.Sprintf(static, `,"addresses":[{"address":"placeholder"}]`, ``), ips, "", address},
		{"addresses of static", "args.cni.ips", fmt.Sprintf(static, `,"addresses":[{"address":"placeholder"}]`, `,"args":{"cni":{"ips":["10.9.7.7/16"]}}`), nil, "", address},
		{"args.cni.ips of static", "runtimeConfig.ips", fmt.Sprintf(static, ``, `,"args":{"cni":{"ips":["placeholder"]}}`), ips, "", address},
		{"CNI_ARGS IP of static", "runtimeConfig.ips", fmt.Sprintf(static, ``, ``), ips, "IP=placeholder", address},
		{"CNI_ARGS MAC of bridge", "args.cni.mac", `{"type":"bridge","bridge":"cni9","args":{"cni":{"mac":"02:00:00:00:00:42"}}}`, nil, "MAC=placeholder", hardware},
		{"CNI_ARGS MAC of bridge", "runtimeConfig.mac", `{"type":"bridge","bridge":"cni9",` + onMAC + `}`, mac, "MAC=placeholder", hardware},
		{"args.cni.mac of bridge", "runtimeConfig.mac", `{"type":"bridge","bridge":"cni9",` + onMAC + `,"args":{"cni":{"mac":"placeholder"}}}`, mac, "", hardware},
		{"CNI_ARGS MAC of bridge", "nothing", `{"type":"bridge","bridge":"cni9"}`, nil, "MAC=placeholder", hardware},
		{"mac of macvlan", "CNI_ARGS MAC", `{"type":"macvlan","master":"eth0","mac":"placeholder"}`, nil, "MAC=02:00:00:00:00:42", hardware},
		{"mac of macvlan", "runtimeConfig.mac", `{"type":"macvlan","master":"eth0","mac":"placeholder",` + onMAC + `}`, mac, "", hardware},
		{"CNI_ARGS MAC of macvlan", "runtimeConfig.mac", `{"type":"macvlan","master":"eth0",` + onMAC + `}`, mac, "MAC=placeholder", hardware},
		{"mac of tap", "CNI_ARGS MAC", `{"type":"tap","mac":"placeholder"}`, nil, "MAC=02:00:00:00:00:42", hardware},
		{"mac of tap", "runtimeConfig.mac", `{"type":"tap","mac":"placeholder",` + onMAC + `}`, mac, "", hardware},
		{"CNI_ARGS MAC of tap", "runtimeConfig.mac", `{"type":"tap",` + onMAC + `}`, mac, "MAC=placeholder", hardware},
		{"mac of tuning", "args.cni.mac", bridge + `{"type":"tuning","mac":"placeholder","args":{"cni":{"mac":"02:00:00:00:00:42"}}}`, nil, "", hardware},
		{"mac of tuning", "runtimeConfig.mac", bridge + `{"type":"tuning","mac":"placeholder",` + onMAC + `}`, mac, "", hardware},
		{"mtu of tuning", "args.cni.mtu", bridge + `{"type":"tuning","mtu":-1,"args":{"cni":{"mtu":1400}}}`, nil, "", nil},
		{"txQLen of tuning", "args.cni.txQLen", bridge + `{"type":"tuning","txQLen":-1,"args":{"cni":{"txQLen":100}}}`, nil, "", nil},
		{"runtimeConfig.bandwidth", "ingressRate", bridge + `{"type":"bandwidth","ingressRate":1048576,"ingressBurst":1048576,"capabilities":{"bandwidth":true}}`, limit, "", nil},
		{"hwaddr of host-device", "device", `{"type":"host-device","device":"spare","hwaddr":"placeholder"}`, nil, "", nil},
		{"kernelpath of host-device", "device", `{"type":"host-device","device":"spare","kernelpath":"placeholder"}`, nil, "", nil},
		{"pciBusID of host-device", "device", `{"type":"host-device","device":"spare","pciBusID":"placeholder"}`, nil, "", nil},
	} {
		c.then = append(c.then, once(from.key+", by "+from.by, from.try))
	}
	return c
}

// try is ADD of the call, taken back by DEL.
func (from source) try(s *stage) string {
	rt, err := s.Node.CNI(netlab.CNIOptions{Path: []string{s.column.dir}, Stderr: s.Stderr, Conflist: []byte(`{"cniVersion":"1.1.0","name":"net9","plugins":[` + from.plugins + `]}`)})
	if err != nil {
		s.T.Fatal(err)
	}
	p := s.NewPod(rt, fmt.Sprintf("from%d", s.tries.Add(1)))
	p.Attachment.Capabilities = from.caps
	if key, value, ok := strings.Cut(from.args, "="); ok {
		p.Attachment.Args = [][2]string{{"IgnoreUnknown", "1"}, {key, value}}
	}
	err = p.TryAdd()
	out := said("ADD", err)
	if err == nil && from.see != nil {
		out += ", " + from.see(p)
	}
	_ = p.TryDel()
	return out
}
