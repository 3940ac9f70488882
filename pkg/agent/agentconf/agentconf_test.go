// SPDX-License-Identifier: Apache-2.0

package agentconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// everything has each key with another value than its default, but networkPolicy.enabled, which firewall: false excludes.
const everything = `
routing: wireguard
network:
  name: pods.1
  file: 05-pods.conflist
  cniVersion: "1.1.0"
  plugin: bridge
  bridge: br-pods
  mtu: 1400
  ipMasq: false
  portMappings: false
  bandwidth: false
  firewall: false
clusterCIDRs: [10.244.0.0/16, "fd00:244::/56"]
serviceCIDRs: [10.96.0.0/12]
nonMasqueradeCIDRs: [192.0.2.0/24, 10.244.0.0/16]
paths: { binDir: /var/lib/cni/bin, confDir: /etc/kubernetes/cni/net.d, hostPrefix: /host }
vxlan: { vni: 4096, port: 4789, device: vx0 }
wireguard: { port: 51821, device: wg7, keyRotation: 24h }
health: { address: "[::1]:9880", podMetrics: true }
garbage: { interval: 30s }
observe:
  enabled: true
  socket: /run/hubble/hubble.sock
  address: 192.0.2.1:4244
  tls: { cert: /etc/tls/tls.crt, key: /etc/tls/tls.key, clientCA: /etc/tls/ca.crt }
  maxRate: 50
  sample: 10
runtimeEndpoint: unix:///run/crio/crio.sock
ipam: { serviceAccount: pools/sluice-ipam }
networkPolicy: { enabled: false }
`

func TestParse(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	whole := &Config{
		Routing: RoutingWireGuard,
		Network: Network{Name: "pods.1", File: "05-pods.conflist", CNIVersion: "1.1.0", Plugin: PluginBridge, Bridge: "br-pods", MTU: 1400},

		ClusterCIDRs: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:244::/56")}, ServiceCIDRs: []netip.Prefix{prefix("10.96.0.0/12")},
		NonMasqueradeCIDRs: []netip.Prefix{prefix("192.0.2.0/24"), prefix("10.244.0.0/16")},

		Paths: Paths{BinDir: "/var/lib/cni/bin", ConfDir: "/etc/kubernetes/cni/net.d", HostPrefix: "/host"},
		VXLAN: VXLAN{VNI: 4096, Port: 4789, Device: "vx0"}, WireGuard: WireGuard{Port: 51821, Device: "wg7", KeyRotation: Duration(24 * time.Hour)},
		Health: Health{Address: "[::1]:9880", PodMetrics: true}, Garbage: Garbage{Interval: Duration(30 * time.Second)},
		Observe: Observe{Enabled: true, Socket: "/run/hubble/hubble.sock", Address: "192.0.2.1:4244", MaxRate: 50, Sample: 10,
			TLS: ObserveTLS{Cert: "/etc/tls/tls.crt", Key: "/etc/tls/tls.key", ClientCA: "/etc/tls/ca.crt"}},
		RuntimeEndpoint: "unix:///run/crio/crio.sock",
		IPAM:            IPAM{ServiceAccount: "pools/sluice-ipam"},
	}
	mtu := Default()
	mtu.Network.MTU = 9000
	policies := Default()
	policies.NetworkPolicy.Enabled = true
	off := Default()
	off.Health.Address, off.Garbage.Interval = "", 0
	for name, tt := range map[string]struct {
		in   string
		want *Config
	}{
		"nothing":    {"", Default()},
		"comments":   {"# routing: vxlan\n", Default()},
		"no keys":    {"{}", Default()},
		"JSON":       {`{"network": {"mtu": 9000}}`, mtu},
		"everything": {everything, whole},
		"defaults":   {marshal(t, Default()), Default()},
		"policies":   {"networkPolicy: {enabled: true}", policies},
		"off":        {"health: {address: \"\"}\ngarbage: {interval: 0s}", off},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Error(diff)
			}
			if err := validate(t, tt.in); err != nil {
				t.Errorf("the schema refuses it: %v", err)
			}
		})
	}
	if diff := cmp.Diff([]netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:244::/56"), prefix("10.96.0.0/12"), prefix("192.0.2.0/24")}, whole.Exempt(),
		cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
	if got := whole.Paths.Bin() + " " + whole.Paths.Conf() + " " + Default().Paths.Bin(); got != "/host/var/lib/cni/bin /host/etc/kubernetes/cni/net.d /opt/cni/bin" {
		t.Errorf("paths: %s", got)
	}
}

// refused are files with one mistake each. byGo are mistakes that the schema cannot see.
var refused = []struct {
	in, key, value string
	byGo           bool
}{
	{"routing: vlxan", "routing", `"vlxan"`, false},
	{"routing: 1", "routing", "1", false},
	{"routing: null", "routing", "null", false},
	{"routng: vxlan", "key", `"routng"`, false},
	{"Routing: vxlan", "key", `"Routing"`, false},
	{"observe: {enabled: 1}", "observe.enabled", "1", false},
	{"observe: {socket: hubble.sock}", "observe.socket", `"hubble.sock"`, false},
	{"observe: {socket: \"\"}", "observe.socket", `""`, false},
	{"observe: {address: hubble}", "observe.address", `"hubble"`, false},
	{"observe: {enabled: true, address: \"0.0.0.0:4244\"}", "observe.address", `"0.0.0.0:4244"`, true},
	{"observe: {enabled: true, address: \"0.0.0.0:4244\", tls: {cert: /a, key: /b}}", "observe.address", `"0.0.0.0:4244"`, true},
	{"observe: {tls: {cert: a}}", "observe.tls.cert", `"a"`, false},
	{"observe: {tls: {ca: /a}}", "key", `"observe.tls.ca"`, false},
	{"observe: {maxRate: 0}", "observe.maxRate", "0", false},
	{"observe: {maxRate: 10001}", "observe.maxRate", "10001", false},
	{"observe: {sample: 0}", "observe.sample", "0", false},
	{"network: {mtuu: 1}", "key", `"network.mtuu"`, false},
	{"network: []", "network", "[]", false},
	{"network:", "network", "null", false},
	{"network: {name: ../x}", "network.name", `"../x"`, false},
	{"network: {name: \"\"}", "network.name", `""`, false},
	{"network: {name: -x}", "network.name", `"-x"`, false},
	{"network: {file: 10-sluice.conf}", "network.file", `"10-sluice.conf"`, false},
	{"network: {file: ../10-sluice.conflist}", "network.file", `"../10-sluice.conflist"`, false},
	{"network: {file: .conflist}", "network.file", `".conflist"`, false},
	{"network: {cniVersion: \"0.4.0\"}", "network.cniVersion", `"0.4.0"`, false},
	{"network: {cniVersion: 1.1}", "network.cniVersion", "1.1", false},
	{"network: {plugin: macvlan}", "network.plugin", `"macvlan"`, false},
	{"network: {bridge: br0}", "network.bridge", `"br0"`, true},
	{"network: {plugin: bridge, bridge: a-name-of-16-byte}", "network.bridge", `"a-name-of-16-byte"`, false},
	{"network: {mtu: 100}", "network.mtu", "100", false},
	{"network: {mtu: \"1500\"}", "network.mtu", `"1500"`, false},
	{"network: {mtu: 1500.5}", "network.mtu", "1500.5", false},
	{"network: {ipMasq: \"yes\"}", "network.ipMasq", `"yes"`, false},
	{"network: {firewall: 1}", "network.firewall", "1", false},
	{"network: {portMappings: null}", "network.portMappings", "null", false},
	{"clusterCIDRs: 10.0.0.0/8", "clusterCIDRs", `"10.0.0.0/8"`, false},
	{"clusterCIDRs:", "clusterCIDRs", "null", false},
	{"clusterCIDRs: [10.0.0.0]", "clusterCIDRs", `["10.0.0.0"]`, false},
	{"clusterCIDRs: [10.0.0.1/8]", "clusterCIDRs", "10.0.0.0/8", true},
	{"clusterCIDRs: [10.0.0.0/8, 10.0.0.0/8]", "clusterCIDRs", "twice", false},
	{"clusterCIDRs: [\"::ffff:10.0.0.0/104\"]", "clusterCIDRs", "IPv4 notation", true},
	{"clusterCIDRs: [10.0.0.0/8]\nserviceCIDRs: [10.96.0.0/12]", "serviceCIDRs", "overlaps 10.0.0.0/8", true},
	{"nonMasqueradeCIDRs: [a]", "nonMasqueradeCIDRs", `["a"]`, false},
	{"paths: {binDir: opt/cni/bin}", "paths.binDir", `"opt/cni/bin"`, false},
	{"paths: {binDir: /opt/../etc}", "paths.binDir", `"/opt/../etc"`, true},
	{"paths: {confDir: \"\"}", "paths.confDir", `""`, false},
	{"paths: {hostPrefix: host}", "paths.hostPrefix", `"host"`, false},
	{"vxlan: {vni: 0}", "vxlan.vni", "0", false},
	{"vxlan: {vni: 16777216}", "vxlan.vni", "16777216", false},
	{"vxlan: {port: 65536}", "vxlan.port", "65536", false},
	{"vxlan: {device: a/b}", "vxlan.device", `"a/b"`, false},
	{"wireguard: {port: -1}", "wireguard.port", "-1", false},
	{"vxlan: {device: a-name-of-13b}", "vxlan.device", `"a-name-of-13b"`, false},
	{"wireguard: {port: 65535}", "wireguard.port", "65535", false},
	{"wireguard: {device: wg@1}", "wireguard.device", `"wg@1"`, false},
	{"wireguard: {keyRotation: 0s}", "wireguard.keyRotation", `"0s"`, true},
	{"wireguard: {keyRotation: 720}", "wireguard.keyRotation", "720", false},
	{"wireguard: {keyRotation: 1m}", "wireguard.keyRotation", `"1m"`, true},
	{"wireguard: {keyRotation: -24h}", "wireguard.keyRotation", `"-24h"`, false},
	{"health: {podMetrics: 1}", "health.podMetrics", "1", false},
	{"health: {address: 9879}", "health.address", "9879", false},
	{"health: {address: \":9879\"}", "health.address", `":9879"`, false},
	{"health: {address: \"localhost:9879\"}", "health.address", `"localhost:9879"`, false},
	{"garbage: {interval: 1s}", "garbage.interval", `"1s"`, true},
	{"garbage: {interval: often}", "garbage.interval", `"often"`, false},
	{"runtimeEndpoint: containerd.sock", "runtimeEndpoint", `"containerd.sock"`, false},
	{"runtimeEndpoint: tcp://127.0.0.1:1", "runtimeEndpoint", `"tcp://127.0.0.1:1"`, false},
	{"networkPolicy: true", "networkPolicy", "true", false},
	{"networkPolicy: {enabled: 1}", "networkPolicy.enabled", "1", false},
	{"networkPolicy: {enabled: true}\nnetwork: {firewall: false}", "networkPolicy.enabled", "true", true},
	{"ipam: {serviceAccount: sluice-ipam}", "ipam.serviceAccount", `"sluice-ipam"`, false},
	{"ipam: {serviceAccount: a/b/c}", "ipam.serviceAccount", `"a/b/c"`, false},
	{"ipam: {serviceAccount: a/../b}", "ipam.serviceAccount", `"a/../b"`, false},
	{"ipam: {serviceAccount: a/B}", "ipam.serviceAccount", `"a/B"`, false},
	{"ipam: {serviceAccount: a/-b}", "ipam.serviceAccount", `"a/-b"`, false},
}

// An error names the key and the value, and the schema refuses what Parse refuses.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range refused {
		_, err := Parse([]byte(tt.in))
		var bad *nodeconf.Error
		if !errors.As(err, &bad) || bad.Key != tt.key || !strings.Contains(bad.Error(), tt.value) || bad.File != "agent configuration" {
			t.Errorf("%q: %v, want the key %s and %s", tt.in, err, tt.key, tt.value)
		}
		if byGo := validate(t, tt.in) == nil; byGo != tt.byGo {
			t.Errorf("%q: the schema accepts it: %v, want %v", tt.in, byGo, tt.byGo)
		}
	}
	for _, in := range []string{"routing: vxlan\nrouting: native", "[]", "routing: [", "a\n\tb: c", "clusterCIDRs: [" + strings.Repeat("x", 99)} {
		if _, err := Parse([]byte(in)); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	for content, want := range map[string]string{"routing: x": path + `: invalid routing "x"`, strings.Repeat("#", maxSize+1): "bytes"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The schema has the keys and the defaults of Config, and says what each is for.
func TestSchema(t *testing.T) {
	t.Parallel()
	var schema node
	if err := json.Unmarshal(Schema, &schema); err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := json.Unmarshal([]byte(marshal(t, Default())), &defaults); err != nil {
		t.Fatal(err)
	}
	compare(t, "", schema, reflect.TypeFor[Config](), defaults)
}

// node is what the test reads of a schema.
type node struct {
	Description          string
	Default              any
	AdditionalProperties *bool
	Properties           map[string]node
}

func compare(t *testing.T, path string, n node, of reflect.Type, defaults map[string]any) {
	t.Helper()
	if n.AdditionalProperties == nil || *n.AdditionalProperties {
		t.Errorf("%s allows unknown keys", path)
	}
	if len(n.Properties) != of.NumField() {
		t.Errorf("%s has %d keys, %s has %d", path, len(n.Properties), of, of.NumField())
	}
	for i := range of.NumField() {
		key := of.Field(i).Tag.Get("json")
		p, ok := n.Properties[key]
		if !ok || path != "" && p.Description == "" {
			t.Errorf("%s.%s: in the schema %v, with the description %q", path, key, ok, p.Description)
		}
		if len(p.Properties) > 0 {
			compare(t, path+"."+key, p, of.Field(i).Type, defaults[key].(map[string]any))
			continue
		}
		if diff := cmp.Diff(defaults[key], p.Default); diff != "" {
			t.Errorf("default of %s.%s (-Go +schema):\n%s", path, key, diff)
		}
	}
}

func marshal(t *testing.T, c *Config) string {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// validate asks the schema about a file.
func validate(t *testing.T, in string) error {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.YAMLToJSON([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil || doc == nil { // an empty file
		return err
	}
	return compiled.Validate(doc)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	for _, tt := range refused {
		f.Add([]byte(tt.in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := Parse(in)
		if err != nil {
			return
		}
		again, err := Parse([]byte(marshal(t, c)))
		if err != nil {
			t.Fatalf("what was accepted is refused when written again: %v", err)
		}
		if diff := cmp.Diff(c, again, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Error(diff)
		}
	})
}
