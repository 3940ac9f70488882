// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

const dualEnv = `# written by flanneld
FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=fd00:10:244::/48
FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
FLANNEL_UNKNOWN
`

func writeEnv(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// conf is a configuration with more keys merged into it.
func conf(t *testing.T, more map[string]any) []byte {
	t.Helper()
	c := map[string]any{"cniVersion": "1.0.0", "name": "cbr0", "type": "flannel"}
	for k, v := range more {
		c[k] = v
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// asAny decodes JSON for a comparison that knows no order of keys.
func asAny(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

func TestDelegateConf(t *testing.T) {
	t.Parallel()
	ranges4, ranges6 := `[{"subnet":"10.244.1.0/24"}]`, `[{"subnet":"fd00:10:244:1::/64"}]`
	tests := []struct {
		name, env string
		more      map[string]any
		want      string
	}{
		{"defaults, dual stack", dualEnv, nil, `{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,
			"ipam":{"type":"host-local","ranges":[` + ranges4 + `,` + ranges6 + `],"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/48"}]}}`},
		{
			"the usual delegate, two networks, masquerading is ours", "FLANNEL_NETWORK=10.244.0.0/16,192.168.0.0/16,10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n",
			map[string]any{"delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true}},
			`{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","hairpinMode":true,"isDefaultGateway":true,"ipMasq":true,"mtu":1400,"isGateway":true,
			"ipam":{"type":"host-local","ranges":[` + ranges4 + `],"routes":[{"dst":"10.244.0.0/16"},{"dst":"192.168.0.0/16"}]}}`,
		},
		{
			"what the operator set wins", dualEnv, map[string]any{
				"delegate":      map[string]any{"type": "ptp", "mtu": 9000, "ipMasq": true},
				"ipam":          map[string]any{"type": "other", "dataDir": "/x", "ranges": "replaced", "routes": []any{map[string]any{"dst": "0.0.0.0/0", "gw": "10.244.1.9"}}},
				"runtimeConfig": map[string]any{"mac": "02:00:00:00:00:01"},
			},
			`{"cniVersion":"1.0.0","name":"cbr0","type":"ptp","mtu":9000,"ipMasq":true,"runtimeConfig":{"mac":"02:00:00:00:00:01"},
			"ipam":{"type":"other","dataDir":"/x","ranges":[` + ranges4 + `,` + ranges6 + `],"routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.9"},{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/48"}]}}`,
		},
		{
			"IPv6 alone, quoted", "FLANNEL_IPV6_NETWORK=\"fd00:10:244::/48\"\nFLANNEL_IPV6_SUBNET='fd00:10:244:1::1/64'\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true", nil,
			`{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","ipMasq":false,"mtu":1430,"isGateway":true,
			"ipam":{"type":"host-local","ranges":[` + ranges6 + `],"routes":[{"dst":"fd00:10:244::/48"}]}}`,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			more := map[string]any{"subnetFile": writeEnv(t, tc.env)}
			for k, v := range tc.more {
				more[k] = v
			}
			c, err := load(conf(t, more))
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := c.delegateConf()
			if err != nil {
				t.Fatal(err)
			}
			b, err := encode(got)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(asAny(t, []byte(tc.want)), asAny(t, b)); d != "" {
				t.Errorf("delegate's configuration (-want +got):\n%s", d)
			}
		})
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	good := map[string]string{"FLANNEL_NETWORK": "10.244.0.0/16", "FLANNEL_SUBNET": "10.244.1.1/24", "FLANNEL_MTU": "1450", "FLANNEL_IPMASQ": "true"}
	env := func(key, value string) string {
		var b strings.Builder
		for k, v := range good {
			if k == key {
				v = value
			}
			if v != "" {
				b.WriteString(k + "=" + v + "\n")
			}
		}
		return b.String()
	}
	tests := []struct {
		name, env string
		more      map[string]any
		code      uint
		words     []string
	}{
		{"no network", env("FLANNEL_NETWORK", ""), nil, 7, []string{"subnetFile", "FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK"}},
		{"no subnet", env("FLANNEL_SUBNET", ""), nil, 7, []string{"FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET"}},
		{"no MTU", env("FLANNEL_MTU", ""), nil, 7, []string{"FLANNEL_MTU"}},
		{"no IPMASQ", env("FLANNEL_IPMASQ", ""), nil, 7, []string{"FLANNEL_IPMASQ"}},
		{"MTU", env("FLANNEL_MTU", "wide"), nil, 7, []string{"FLANNEL_MTU=wide"}},
		{"negative MTU", env("FLANNEL_MTU", "-1"), nil, 7, []string{"FLANNEL_MTU=-1"}},
		{"small MTU", env("FLANNEL_MTU", "67"), nil, 7, []string{"FLANNEL_MTU=67", "68 to 65535"}},
		{"large MTU", env("FLANNEL_MTU", "65536"), nil, 7, []string{"FLANNEL_MTU=65536"}},
		{"network", env("FLANNEL_NETWORK", "10.244.0.0/16,x"), nil, 7, []string{"FLANNEL_NETWORK", `"x"`}},
		{"family", env("FLANNEL_SUBNET", "fd00::1/64"), nil, 7, []string{"FLANNEL_SUBNET", "fd00::1/64"}},
		{"empty", "", nil, 7, []string{"FLANNEL_MTU"}},
		{"name in delegate", "", map[string]any{"delegate": map[string]any{"name": "x"}}, 7, []string{"delegate.name", "x"}},
		{"ipam in delegate", "", map[string]any{"delegate": map[string]any{"ipam": map[string]any{}}}, 7, []string{"delegate.ipam"}},
		{"type of delegate", env("", ""), map[string]any{"delegate": map[string]any{"type": 5}}, 7, []string{"delegate.type", "5"}},
		{"type of ipam", env("", ""), map[string]any{"ipam": map[string]any{"type": ""}}, 7, []string{"ipam.type"}},
		{"delegate is a list", "", map[string]any{"delegate": []any{}}, 6, []string{"delegate"}},
		{"routes", env("", ""), map[string]any{"ipam": map[string]any{"routes": "x"}}, 6, []string{"ipam.routes"}},
		{"no file", "", map[string]any{"subnetFile": "/no/such/subnet.env"}, 11, []string{"/no/such/subnet.env", "flanneld"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			more := map[string]any{"subnetFile": writeEnv(t, tc.env)}
			for k, v := range tc.more {
				more[k] = v
			}
			c, err := load(conf(t, more))
			if err == nil {
				_, _, err = c.delegateConf()
			}
			e := cnierr.From(err)
			if e == nil || e.Code != tc.code {
				t.Fatalf("error %+v, want code %d", e, tc.code)
			}
			for _, w := range tc.words {
				if !strings.Contains(e.Msg+e.Details, w) {
					t.Errorf("%q does not name %s", e.Msg, w)
				}
			}
		})
	}
}

func FuzzParseSubnets(f *testing.F) {
	f.Add(dualEnv)
	f.Add("FLANNEL_MTU")
	f.Add(strings.Replace(dualEnv, "FLANNEL_MTU=1450", "FLANNEL_MTU=70000", 1))
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSubnets(text)
		if err == nil && (len(s.networks) == 0 || len(s.own) == 0 || len(s.own) > 2 && !strings.Contains(text, ",")) {
			t.Errorf("%q gave %+v", text, s)
		}
		if err == nil {
			fuzztest.Between(t, "mtu", s.mtu, minMTU, maxMTU, 0)
		}
	})
}
