// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
)

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

const dual = `{
  "cniVersion": "1.0.0",
  "name": "sluice",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": true,
      "mtu": 1450,
      "ipam": {
        "type": "host-local",
        "ranges": [
          [
            {
              "subnet": "10.244.1.0/24"
            }
          ],
          [
            {
              "subnet": "fd24:0:0:1::/64"
            }
          ]
        ],
        "routes": [
          {
            "dst": "0.0.0.0/0"
          },
          {
            "dst": "::/0"
          }
        ]
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    },
    {
      "type": "bandwidth",
      "capabilities": {
        "bandwidth": true
      }
    },
    {
      "type": "firewall"
    }
  ]
}
`

const bridge6 = `{
  "cniVersion": "1.1.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "br0",
      "isGateway": true,
      "hairpinMode": true,
      "forceAddress": true,
      "ipMasq": false,
      "mtu": 9000,
      "ipam": {
        "type": "host-local",
        "ranges": [
          [
            {
              "subnet": "fd24:0:0:1::/64"
            }
          ]
        ],
        "routes": [
          {
            "dst": "::/0"
          }
        ]
      }
    }
  ]
}
`

func TestBuild(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		c     agentconf.Network
		cidrs []netip.Prefix
		mtu   int
		want  string
	}{
		{agentconf.Default().Network, prefixes("10.244.1.0/24", "fd24:0:0:1::/64"), 1450, dual},
		{agentconf.Network{Name: "pods", CNIVersion: "1.1.0", Plugin: agentconf.PluginBridge, Bridge: "br0"}, prefixes("fd24:0:0:1::/64"), 9000, bridge6},
	} {
		got, err := Build(tt.c, false, tt.cidrs, tt.mtu)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if subnets := Subnets(got); !slices.Equal(subnets, tt.cidrs) {
			t.Errorf("subnets %v, want %v", subnets, tt.cidrs)
		}
	}
}

// Only the plugin firewall is told of policies.
func TestBuildWithPolicies(t *testing.T) {
	t.Parallel()
	got, err := Build(agentconf.Default().Network, true, prefixes("10.244.1.0/24", "fd24:0:0:1::/64"), 1450)
	want := strings.Replace(dual, `"type": "firewall"`, `"type": "firewall",
      "networkPolicy": true`, 1)
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cidrs []netip.Prefix
		mtu   int
		text  string
	}{
		{nil, 1500, "no podCIDR"},
		{prefixes("10.244.1.0/31"), 1500, "10.244.1.0/31"},
		{prefixes("fd24::1/128"), 1500, "fd24::1/128"},
		{prefixes("10.244.1.0/24", "10.244.2.0/24"), 1500, "of one family"},
		{prefixes("10.244.1.0/24", "fd24::/64"), 1279, "at least 1280"},
	} {
		if _, err := Build(agentconf.Default().Network, false, tt.cidrs, tt.mtu); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v: %v, want %q", tt.cidrs, err, tt.text)
		}
	}
	if _, err := Build(agentconf.Default().Network, false, prefixes("10.244.1.0/24"), 1000); err != nil {
		t.Errorf("a small MTU without IPv6: %v", err)
	}
}

// Content of others has no subnets, and does no harm.
func TestSubnetsOfOthers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "[]", `{"plugins": 1}`, `{"plugins": [{"ipam": {"ranges": [[{"subnet": "x"}]]}}]}`, `{"plugins": [{"type": "calico"}]}`} {
		if got := Subnets([]byte(text)); len(got) != 0 {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestOutside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"10.244.1.5", "10.244.2.5", "fd24::7", "fd25::7", "fd25__8", "last_reserved_ip.0", "lock"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Outside(dir, prefixes("10.244.1.0/24", "fd24::/64"))
	want := []netip.Addr{netip.MustParseAddr("10.244.2.5"), netip.MustParseAddr("fd25::7"), netip.MustParseAddr("fd25::8")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := Outside(filepath.Join(dir, "none"), nil); err != nil || len(got) != 0 {
		t.Errorf("no directory: %v, %v", got, err)
	}
}

// A closed network is the same but for one key, and a file of another network is left alone.
func TestClosed(t *testing.T) {
	t.Parallel()
	text, ok, err := Closed([]byte(dual), "sluice")
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	if got, want := strings.Join(strings.Fields(string(text)), ""), `"closed":true`; strings.Count(got, want) != 1 || !strings.Contains(got, `"type":"ptp"`) || !strings.Contains(got, "10.244.1.0/24") {
		t.Errorf("%s", text)
	}
	if again, ok, err := Closed(text, "sluice"); err != nil || !ok || string(again) != string(text) {
		t.Errorf("again: %s, %v, %v", again, ok, err)
	}
	for _, content := range []string{"", "{", `{"name": "sluice"}`, `{"name": "sluice", "plugins": ["ptp"]}`, strings.Replace(dual, `"sluice"`, `"other"`, 1)} {
		if _, ok, err := Closed([]byte(content), "sluice"); ok || err != nil {
			t.Errorf("%s: %v, %v", content, ok, err)
		}
	}
}

// Another network is a file that a runtime reads and that names one.
func TestAnother(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file, content string
		want          bool
	}{
		"a list":           {"20-a.conflist", dual, true},
		"one plugin":       {"05-a.conf", `{"cniVersion": "1.0.0", "name": "a", "type": "bridge"}`, true},
		"the network's":    {"10-sluice.conflist", dual, false},
		"another file":     {"20-a.conflist.bak", dual, false},
		"no configuration": {"20-a.conflist", `{"name": "a"}`, false},
		"half of one":      {"20-a.json", `{"cniVersion": "1.0.0", "na`, false},
	} {
		dir := t.TempDir()
		own := filepath.Join(dir, "10-sluice.conflist")
		for path, content := range map[string]string{own: dual, filepath.Join(dir, tt.file): tt.content} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := Another(dir, own); err != nil || got != tt.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := Another(filepath.Join(t.TempDir(), "none"), "x"); err != nil || got {
		t.Errorf("no directory: %v, %v", got, err)
	}
}
