// SPDX-License-Identifier: Apache-2.0

package nodeconf

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParse(t *testing.T) {
	t.Parallel()
	with := func(f func(*Config)) *Config {
		c := Default()
		f(c)
		return c
	}
	tests := []struct {
		name, in string
		want     *Config
	}{
		{"empty file", "", Default()},
		{"empty object", "{}", Default()},
		{"backend", `{"backend": "nftables"}`, with(func(c *Config) { c.Backend = BackendNFTables })},
		{"uplinks", `{"uplinks": ["eth0", "bond0.100"]}`, with(func(c *Config) { c.Uplinks = []string{"eth0", "bond0.100"} })},
		{"fast path", `{"fastPath": "off"}`, with(func(c *Config) { c.FastPath = FastPathOff })},
		{"established", `{"fastPath": "established"}`, Default()},
		{"immediate", `{"fastPath": "immediate"}`, with(func(c *Config) { c.FastPath = FastPathImmediate })},
		{"relearn", `{"relearnSeconds": 60}`, with(func(c *Config) { c.Relearn = 60 })},
		{"never relearn", `{"relearnSeconds": 0}`, with(func(c *Config) { c.Relearn = 0 })},
		{"relearn once a day", `{"relearnSeconds": 86400}`, with(func(c *Config) { c.Relearn = 86400 })},
		{"variant", `{"iptablesVariant": "legacy"}`, with(func(c *Config) { c.IPTables = VariantLegacy })},
		{"anti-spoof", `{"antiSpoof": false}`, with(func(c *Config) { c.AntiSpoof = false })},
		{"mark as string", `{"firewallMark": "0x20"}`, with(func(c *Config) { c.AdmitMark = 0x20 })},
		{"mark as number", `{"firewallMark": 32}`, with(func(c *Config) { c.AdmitMark = 32 })},
		{"snat ports", `{"snatPorts": "61000-65535, 1024-32767"}`, with(func(c *Config) {
			c.SNATPorts = []PortRange{{61000, 65535}, {1024, 32767}}
		})},
		{"no masquerade", `{"nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"]}`, with(func(c *Config) {
			c.NonMasqueradeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
		})},
		{"allowed sources of an attachment", `{"allowedSourcesPerAttachment": 9}`, with(func(c *Config) { c.AllowedSourcesPerAttachment = 9 })},
		{"hostPorts on the node's ports", `{"hostPortConflicts": "refuse"}`, with(func(c *Config) { c.HostPortConflicts = ConflictsRefuse })},
		{"hostPorts of an attachment", `{"hostPortsPerAttachment": 9}`, with(func(c *Config) { c.HostPortsPerAttachment = 9 })},
		{"sizes", `{"mapSizes": {"conntrack": 1024, "hostPorts": 64}}`, with(func(c *Config) {
			c.MapSizes = MapSizes{Conntrack: 1024, HostPorts: 64}
		})},
		{"bpffs", `{"bpffs": "/run/bpf/"}`, with(func(c *Config) { c.BPFFS = "/run/bpf" })},
		{"cgroup", `{"cgroupRoot": "/sys/fs/cgroup/unified/"}`, with(func(c *Config) { c.CgroupRoot = "/sys/fs/cgroup/unified" })},
		{"no cgroup", `{"cgroupRoot": "off"}`, with(func(c *Config) { c.CgroupRoot = CgroupOff })},
		{"attach", `{"attach": "tcx"}`, with(func(c *Config) { c.Attach = AttachTCX })},
		{"log", `{"log": {"level": "debug", "file": "/var/log/x"}}`, with(func(c *Config) { c.Log = Log{"debug", "/var/log/x"} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever cannot be used is an error that names key and value.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, key, text string }{
		{`[]`, "", "not a JSON object"},
		{`{"backend": "ebpf"`, "", "not a JSON object"},
		{`{"backends": "ebpf"}`, "key", `"backends"`},
		{`{"backend": "xdp"}`, "backend", `"xdp"`},
		{`{"backend": 1}`, "backend", "want nodeconf.Backend"},
		{`{"uplinks": "eth0"}`, "uplinks", "eth0"},
		{`{"uplinks": ["a-name-of-16-byte"]}`, "uplinks", "a-name-of-16-byte"},
		{`{"uplinks": ["eth0", "eth0"]}`, "uplinks", "twice"},
		{`{"uplinks": ["a/b"]}`, "uplinks", "a/b"},
		{`{"uplinks": ["eth\u0001"]}`, "uplinks", "not the name"},
		{`{"uplinks": ["eth\u001b[2J"]}`, "uplinks", "not the name"},
		{`{"uplinks": ["eth\r"]}`, "uplinks", "not the name"},
		{`{"uplinks": ["eth\u0085"]}`, "uplinks", "not the name"},
		{`{"fastPath": "sometimes"}`, "fastPath", "sometimes"},
		{`{"relearnSeconds": -1}`, "relearnSeconds", "-1"},
		{`{"relearnSeconds": 86401}`, "relearnSeconds", "86400"},
		{`{"relearnSeconds": 0.5}`, "relearnSeconds", "0.5"},
		{`{"relearnSeconds": "5s"}`, "relearnSeconds", "5s"},
		{`{"antiSpoof": "yes"}`, "antiSpoof", "yes"},
		{`{"firewallMark": "lots"}`, "firewallMark", "lots"},
		{`{"firewallMark": 4294967296}`, "firewallMark", "4294967296"},
		{`{"snatPorts": "0-5"}`, "snatPorts", "0-5"},
		{`{"snatPorts": "9-5"}`, "snatPorts", "9-5"},
		{`{"snatPorts": "70000"}`, "snatPorts", "70000"},
		{`{"snatPorts": "1-5,5-9"}`, "snatPorts", "overlaps"},
		{`{"snatPorts": "1,2,3"}`, "snatPorts", "two ranges"},
		{`{"snatPorts": ""}`, "snatPorts", "range"},
		{`{"nonMasqueradeCIDRs": [` + strings.Repeat(`"10.0.0.0/8",`, 1024) + `"10.0.0.0/8"]}`, "nonMasqueradeCIDRs", "at most 1024"},
		{`{"nonMasqueradeCIDRs": ["10.0.0.0"]}`, "nonMasqueradeCIDRs", "10.0.0.0"},
		{`{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}`, "nonMasqueradeCIDRs", "10.0.0.0/8"},
		{`{"nonMasqueradeCIDRs": ["::ffff:10.0.0.0/104"]}`, "nonMasqueradeCIDRs", "IPv4 notation"},
		{`{"mapSizes": {"conntrack": 3}}`, "mapSizes", "conntrack"},
		{`{"mapSizes": {"flow": 64}}`, "mapSizes", "flow"},
		{`{"allowedSourcesPerAttachment": 0}`, "allowedSourcesPerAttachment", "want 1 to"},
		{`{"hostPortConflicts": "deny"}`, "hostPortConflicts", "want one of [allow warn refuse]"},
		{`{"hostPortConflicts": true}`, "hostPortConflicts", "want"},
		{`{"hostPortsPerAttachment": 0}`, "hostPortsPerAttachment", "want 1 to"},
		{`{"hostPortsPerAttachment": -1}`, "hostPortsPerAttachment", "want 1 to"},
		{`{"hostPortsPerAttachment": 10000000}`, "hostPortsPerAttachment", "want 1 to"},
		{`{"hostPortsPerAttachment": "all"}`, "hostPortsPerAttachment", "want int"},
		{`{"mapSizes": {"conntrack": 3}}`, "mapSizes", "conntrack"},
		{`{"mapSizes": {"conntrack": 4000000000}}`, "mapSizes", "conntrack"},
		{`{"bpffs": "bpf"}`, "bpffs", "absolute"},
		{`{"cgroupRoot": "unified"}`, "cgroupRoot", "absolute"},
		{`{"attach": "xdp"}`, "attach", "xdp"},
		{`{"log": {"level": "loud"}}`, "log", "loud"},
		{`{"log": {"file": "x"}}`, "log", "absolute"},
		{`{"log": {"path": "/x"}}`, "log", "path"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(tt.in))
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if bad.Key != tt.key || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("key %q: %v", bad.Key, err)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.json")
	if c, err := Load(path); err != nil || c.BPFFS != DefaultBPFFS {
		t.Errorf("missing file: %+v, %v", c, err)
	}
	if err := os.WriteFile(path, []byte(`{"backend": "no"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"backend":"auto","uplinks":["eth0"],"snatPorts":"1-2,3-4","nonMasqueradeCIDRs":["10.0.0.0/8"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Parse(raw)
		if (c == nil) == (err == nil) {
			t.Errorf("config %v with error %v", c, err)
		}
	})
}

func TestWithNonMasquerade(t *testing.T) {
	t.Parallel()
	one := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, tt := range []struct {
		in    string
		cidrs []netip.Prefix
		want  string
	}{
		{"", one, "{\n  \"nonMasqueradeCIDRs\": [\n    \"10.0.0.0/8\"\n  ]\n}\n"},
		{"", nil, "{}\n"},
		{`{"nonMasqueradeCIDRs":["192.0.2.0/24"],"backend":"auto"}`, nil, "{\n  \"backend\": \"auto\"\n}\n"},
		{`{"relearnSeconds": 7, "nonMasqueradeCIDRs": [], "attach":"tcx"}`, one, "{\n  \"relearnSeconds\": 7,\n  \"nonMasqueradeCIDRs\": [\n    \"10.0.0.0/8\"\n  ],\n  \"attach\": \"tcx\"\n}\n"},
		{`{"firewallMark": "0x20"}`, one, "{\n  \"firewallMark\": \"0x20\",\n  \"nonMasqueradeCIDRs\": [\n    \"10.0.0.0/8\"\n  ]\n}\n"},
	} {
		got, err := WithNonMasquerade([]byte(tt.in), tt.cidrs)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %v\n%s", tt.in, err, got)
		}
	}
	var bad *Error
	if _, err := WithNonMasquerade([]byte(`{"backend": 1}`), one); !errors.As(err, &bad) || bad.Key != "backend" {
		t.Errorf("a bad file: %v", err)
	}
}

// Only a backend that is not eBPF refuses it.
func TestEBPFRefused(t *testing.T) {
	for b, refused := range map[Backend]bool{BackendAuto: false, BackendEBPF: false, BackendIPTables: true, BackendNFTables: true} {
		if err := (&Config{Backend: b}).EBPFRefused(); (err != nil) != refused || refused && !strings.Contains(err.Error(), string(b)) {
			t.Errorf("%s: %v", b, err)
		}
	}
}
