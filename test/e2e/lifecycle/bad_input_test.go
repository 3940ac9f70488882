// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

func bridgeConf(changes e2etest.Attributes) []byte {
	return e2etest.ConfJSON(e2etest.Attributes{
		"cniVersion": "1.1.0", "name": "net0", "type": "bridge", "isGateway": true, "ipMasq": true,
		"ipam": e2etest.Attributes{"type": "host-local", "subnet": "10.1.0.0/16"},
	}, changes)
}

func ipamConf(ipam e2etest.Attributes) []byte {
	i := e2etest.Attributes{"type": "host-local"}
	maps.Copy(i, ipam)
	return bridgeConf(e2etest.Attributes{"ipam": i})
}

// prevResult is what bridge would have said.
func prevResult() e2etest.Attributes {
	return e2etest.Attributes{
		"cniVersion": "1.1.0",
		"interfaces": []e2etest.Attributes{{"name": "cni0"}, {"name": "vethbad"}, {"name": "eth0", "sandbox": "/run/netns/bad", "mac": "02:00:00:00:00:01"}},
		"ips":        []e2etest.Attributes{{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}},
	}
}

func chainedConf(plugin string, changes e2etest.Attributes) []byte {
	return e2etest.ConfJSON(e2etest.Attributes{"cniVersion": "1.1.0", "name": "net0", "type": plugin, "prevResult": prevResult()}, changes)
}

func portsConf(ports ...e2etest.Attributes) []byte {
	return chainedConf("portmap", e2etest.Attributes{"runtimeConfig": e2etest.Attributes{"portMappings": ports}})
}

func port(host, container any, proto string) e2etest.Attributes {
	return e2etest.Attributes{"hostPort": host, "containerPort": container, "protocol": proto}
}

type badInput struct {
	name   string
	plugin string
	env    map[string]string
	stdin  []byte
	code   uint
	words  []string
}

// Each mistake is a CNI error with a code that says whose fault it is and a
// text that names key and value, and leaves nothing behind.
func badInputs() []badInput {
	long := strings.Repeat("x", 16)
	return []badInput{
		{"portmap: unknown back end", "portmap", nil, chainedConf("portmap", e2etest.Attributes{"backend": "pigeons", "runtimeConfig": e2etest.Attributes{"portMappings": []e2etest.Attributes{port(8080, 80, "tcp")}}}), 7, []string{"backend", "pigeons"}},
		{"bridge: unknown back end", "bridge", nil, bridgeConf(e2etest.Attributes{"ipMasqBackend": "pigeons"}), 7, []string{"ipMasqBackend", "pigeons"}},
		{"firewall: unknown ingressPolicy", "firewall", nil, chainedConf("firewall", e2etest.Attributes{"ingressPolicy": "shut"}), 7, []string{"ingressPolicy", "shut"}},
		{"a bad CIDR", "bridge", nil, ipamConf(e2etest.Attributes{"subnet": "10.1.0.0/33"}), 7, []string{"subnet", "10.1.0.0/33"}},
		{"a CIDR with host bits", "bridge", nil, ipamConf(e2etest.Attributes{"subnet": "10.1.2.3/16"}), 7, []string{"subnet", "10.1.2.3/16"}},
		{"a CIDR without room", "bridge", nil, ipamConf(e2etest.Attributes{"subnet": "10.1.0.0/31"}), 7, []string{"subnet", "10.1.0.0/31"}},
		{"a bad CIDR in ranges", "bridge", nil, ipamConf(e2etest.Attributes{"ranges": [][]e2etest.Attributes{{{"subnet": "nonsense"}}}}), 7, []string{"subnet", "nonsense"}},
		{"a bad route", "bridge", nil, ipamConf(e2etest.Attributes{"subnet": "10.1.0.0/16", "routes": []e2etest.Attributes{{"dst": "0.0.0.0/99"}}}), 7, []string{"0.0.0.0/99"}},
		{"a range outside of its subnet", "bridge", nil, ipamConf(e2etest.Attributes{"ranges": [][]e2etest.Attributes{{{"subnet": "10.1.0.0/16", "rangeStart": "10.2.0.1"}}}}), 7, []string{"rangeStart", "10.2.0.1"}},
		{"overlapping ranges in one set", "bridge", nil, ipamConf(e2etest.Attributes{"ranges": [][]e2etest.Attributes{{
			{"subnet": "10.1.0.0/16", "rangeEnd": "10.1.0.20"}, {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.30"}}}}), 7, []string{"10.1.0.10"}},
		{"overlapping sets", "bridge", nil, ipamConf(e2etest.Attributes{"ranges": [][]e2etest.Attributes{{{"subnet": "10.1.0.0/16"}}, {{"subnet": "10.1.5.0/24"}}}}), 7, []string{"10.1.5."}},
		{"an empty pool", "bridge", nil, ipamConf(e2etest.Attributes{"ranges": [][]e2etest.Attributes{{}}}), 7, []string{"ranges"}},
		{"no pool", "bridge", nil, ipamConf(nil), 7, []string{"ranges"}},
		{"a hostPort of 0", "portmap", nil, portsConf(port(0, 80, "tcp")), 7, []string{"hostPort", "0"}},
		{"a negative hostPort", "portmap", nil, portsConf(port(-1, 80, "tcp")), 7, []string{"hostPort", "-1"}},
		{"a hostPort of 70000", "portmap", nil, portsConf(port(70000, 80, "tcp")), 7, []string{"hostPort", "70000"}},
		{"a containerPort of 70000", "portmap", nil, portsConf(port(8080, 70000, "tcp")), 7, []string{"containerPort", "70000"}},
		{"an unknown protocol", "portmap", nil, portsConf(port(8080, 80, "carrier")), 7, []string{"protocol", "carrier"}},
		{"no protocol", "portmap", nil, portsConf(port(8080, 80, "")), 7, []string{"protocol"}},
		{"a hostPort twice", "portmap", nil, portsConf(port(8080, 80, "tcp"), port(8080, 81, "tcp")), 7, []string{"8080"}},
		{"a hostIP that is none", "portmap", nil, portsConf(e2etest.Attributes{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "localhost"}), 7, []string{"hostIP", "localhost"}},
		{"portmap without prevResult", "portmap", nil, e2etest.ConfJSON(e2etest.Attributes{"cniVersion": "1.1.0", "name": "net0", "type": "portmap"}, e2etest.Attributes{"runtimeConfig": e2etest.Attributes{"portMappings": []e2etest.Attributes{port(8080, 80, "tcp")}}}), 7, []string{"prevResult"}},
		{"our own netns", "bridge", map[string]string{"CNI_NETNS": "/proc/self/ns/net"}, bridgeConf(nil), 8, []string{"CNI_NETNS", "/proc/self/ns/net"}},
		{"our own netns, host-local", "host-local", map[string]string{"CNI_NETNS": "/proc/self/ns/net"}, ipamConf(e2etest.Attributes{"subnet": "10.1.0.0/16"}), 8, []string{"CNI_NETNS"}},
		{"a netns that does not exist", "bridge", map[string]string{"CNI_NETNS": "/run/netns/absent"}, bridgeConf(nil), 8, []string{"/run/netns/absent"}},
		{"a netns that is none", "bridge", map[string]string{"CNI_NETNS": "/etc/hostname"}, bridgeConf(nil), 8, []string{"/etc/hostname"}},
		{"an interface name of 16 characters", "bridge", map[string]string{"CNI_IFNAME": long}, bridgeConf(nil), 4, []string{"CNI_IFNAME"}},
		{"an interface name with a slash", "bridge", map[string]string{"CNI_IFNAME": "a/b"}, bridgeConf(nil), 4, []string{"CNI_IFNAME"}},
		{"no container ID", "bridge", map[string]string{"CNI_CONTAINERID": testbin.Unset}, bridgeConf(nil), 4, []string{"CNI_CONTAINERID"}},
		{"a container ID that climbs", "bridge", map[string]string{"CNI_CONTAINERID": "../../etc"}, bridgeConf(nil), 4, []string{"../../etc"}},
		{"not JSON", "bridge", nil, []byte("bridge: cni0\n"), 6, nil},
		{"not JSON, portmap", "portmap", nil, []byte("{"), 6, nil},
		{"no input", "bridge", nil, nil, 6, nil},
		{"a wrong type", "bridge", nil, bridgeConf(e2etest.Attributes{"mtu": "big"}), 6, []string{"mtu"}},
		{"no network name", "bridge", nil, bridgeConf(e2etest.Attributes{"name": ""}), 7, []string{"name"}},
		{"a network name that climbs", "bridge", nil, bridgeConf(e2etest.Attributes{"name": "../../etc"}), 7, []string{"name", "../../etc"}},
		{"an unknown version", "bridge", nil, bridgeConf(e2etest.Attributes{"cniVersion": "9.9.9"}), 1, nil},
		{"contradicting keys", "bridge", nil, bridgeConf(e2etest.Attributes{"hairpinMode": true, "promiscMode": true}), 7, []string{"hairpinMode", "promiscMode"}},
		{"a VLAN out of range", "bridge", nil, bridgeConf(e2etest.Attributes{"vlan": 4095}), 7, []string{"vlan", "4095"}},
		{"a negative MTU", "bridge", nil, bridgeConf(e2etest.Attributes{"mtu": -1}), 7, []string{"mtu", "-1"}},
		{"a bridge name that is too long", "bridge", nil, bridgeConf(e2etest.Attributes{"bridge": long}), 7, []string{"bridge", long}},
		{"an IPAM plugin that is not there", "bridge", nil, bridgeConf(e2etest.Attributes{"ipam": e2etest.Attributes{"type": "absent"}}), 7, []string{"absent"}},
		{"an IPAM type with a slash", "bridge", nil, bridgeConf(e2etest.Attributes{"ipam": e2etest.Attributes{"type": "../../bin/sh"}}), 7, []string{"../../bin/sh"}},
		{"a bad MAC", "bridge", nil, bridgeConf(e2etest.Attributes{"runtimeConfig": e2etest.Attributes{"mac": "xx"}}), 7, []string{"mac", "xx"}},
		{"tuning: a sysctl outside of net", "tuning", nil, chainedConf("tuning", e2etest.Attributes{"sysctl": e2etest.Attributes{"kernel.hostname": "x"}}), 7, []string{"kernel.hostname"}},
		{"tuning: a sysctl that climbs", "tuning", nil, chainedConf("tuning", e2etest.Attributes{"sysctl": e2etest.Attributes{"net/../kernel/hostname": "x"}}), 7, []string{"net/../kernel/hostname"}},
		{"tuning: a bad MAC", "tuning", nil, chainedConf("tuning", e2etest.Attributes{"mac": "xx"}), 7, []string{"mac", "xx"}},
		{"unknown CNI_ARGS", "bridge", map[string]string{"CNI_ARGS": "FOO=bar"}, bridgeConf(nil), 4, []string{"FOO"}},
		{"CNI_ARGS that do not split", "bridge", map[string]string{"CNI_ARGS": "MAC"}, bridgeConf(nil), 4, []string{"MAC"}},
		{"a requested address outside of the pool", "bridge", nil, bridgeConf(e2etest.Attributes{"runtimeConfig": e2etest.Attributes{"ips": []string{"10.7.0.1"}}}), 7, []string{"10.7.0.1"}},
		{"an unknown verb", "bridge", map[string]string{"CNI_COMMAND": "DANCE"}, bridgeConf(nil), 4, []string{"DANCE"}},
	}
}

func TestPrivilegedBadInput(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Node.PodT(t, "bad")
	before := w.Warmup(w.Runtime(fullChain()), somePorts()...)
	for _, tt := range badInputs() {
		t.Run(tt.name, func(t *testing.T) {
			out, err := w.CallPlugin(tt.plugin, "ADD", tt.env, tt.stdin)
			if err == nil {
				t.Fatalf("ADD succeeded: %s", out)
			}
			assertCNIError(t, err, tt.code, tt.words...)
			if tt.code != 1 && strings.Contains(out, `"code": 999`) {
				t.Error("the code says nothing")
			}
			if d := diffNow(w, before); d != "" {
				t.Errorf("left behind:\n%s", d)
				before = w.SyncedSnapshot()
			}
		})
	}
}

func diffNow(w *e2etest.World, before netlab.Snapshot) string {
	return netlab.DiffSoon(before, w.SyncedSnapshot)
}

// The node's own configuration is checked as strictly.
func TestPrivilegedBadNodeConfig(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		code       uint
		words      []string
	}{
		{"unknown back end", `{"backend": "pigeons"}`, 7, []string{"backend", "pigeons"}},
		{"unknown key", `{"fastpaths": "off"}`, 7, []string{"fastpaths"}},
		{"unknown fast path mode", `{"fastPath": "warp"}`, 7, []string{"fastPath", "warp"}},
		{"a bad CIDR", `{"nonMasqueradeCIDRs": ["10.0.0.0/64"]}`, 7, []string{"nonMasqueradeCIDRs", "10.0.0.0/64"}},
		{"a bad port range", `{"snatPorts": "70000-80000"}`, 7, []string{"snatPorts", "70000-80000"}},
		{"an absurd map size", `{"mapSizes": {"conntrack": -5}}`, 7, []string{"conntrack", "-5"}},
		{"not JSON", `backend: auto`, 7, []string{"/etc/sluice/config.json"}},
	}
	w := e2etest.NewWorld(t)
	// portmap and firewall need a pod to work on.
	p := w.AddPod(w.Runtime(e2etest.Network{Plugins: []string{}, NoMasq: true}), "bad")
	w.Node.PodT(t, "worse")
	prev := e2etest.Attributes{"prevResult": p.Result, "runtimeConfig": e2etest.Attributes{"portMappings": []e2etest.Attributes{port(8080, 80, "tcp")}}}
	before := w.SyncedSnapshot()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w.Configure(tt.text)
			for plugin, stdin := range map[string][]byte{
				"bridge": bridgeConf(nil), "portmap": chainedConf("portmap", prev), "firewall": chainedConf("firewall", prev),
			} {
				env := map[string]string{}
				if plugin == "bridge" {
					env = map[string]string{"CNI_CONTAINERID": "worse", "CNI_NETNS": "/run/netns/worse"}
				}
				_, err := w.CallPlugin(plugin, "ADD", env, stdin)
				if err == nil {
					t.Errorf("%s: ADD succeeded", plugin)
					continue
				}
				assertCNIError(t, err, tt.code, tt.words...)
			}
			w.DoOnNode(func() error { return os.Remove("/etc/sluice/config.json") })
			if d := diffNow(w, before); d != "" {
				t.Errorf("left behind:\n%s", d)
				before = w.SyncedSnapshot()
			}
		})
	}
}

// CNI_NETNS_OVERRIDE allows what is refused without it.
func TestPrivilegedNetNSOverride(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	env := map[string]string{"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "true", "CNI_IFNAME": "lo"}
	stdin := e2etest.ConfJSON(e2etest.Attributes{"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}, nil)
	if _, err := w.CallPlugin("loopback", "ADD", env, stdin); err != nil {
		t.Errorf("with CNI_NETNS_OVERRIDE: %v", err)
	}
	delete(env, "CNI_NETNS_OVERRIDE")
	_, err := w.CallPlugin("loopback", "ADD", env, stdin)
	if err == nil {
		t.Fatal("without: ADD succeeded")
	}
	assertCNIError(t, err, 8)
}

// A name the binary does not answer to is an error object as well.
func TestPrivilegedUnknownPlugin(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	dir := t.TempDir()
	link := fmt.Sprintf("%s/teleport", dir)
	if err := os.Symlink(e2etest.Programs.Path("sluice-cni"), link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link)
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=x", "CNI_NETNS=/run/netns/x", "CNI_IFNAME=eth0", "CNI_PATH="+e2etest.Programs.Dir)
	cmd.Stdin = bytes.NewReader(bridgeConf(nil))
	var out []byte
	err := w.Node.Do(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	var e types.Error
	if err == nil || json.Unmarshal(out, &e) != nil || e.Code == types.ErrInternal || e.Code == 0 || !strings.Contains(e.Msg, "teleport") {
		t.Errorf("exit %v, stdout %q; want a CNI error that names teleport", err, out)
	}
}
