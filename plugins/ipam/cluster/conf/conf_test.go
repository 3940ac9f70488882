// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

func load(t *testing.T, ipam, args string, rest ...string) (*Config, error) {
	t.Helper()
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"whereabouts",%s}%s}`, ipam, strings.Join(rest, ""))
	return Load(&cniskel.Args{CmdArgs: cniskel.CmdArgs{Args: args, StdinData: []byte(text)}})
}

const kube = `"kubernetes":{"kubeconfig":"/k"}`

func bounds(c *Config) (out []string) {
	for _, r := range c.Ranges {
		out = append(out, fmt.Sprintf("%s %s-%s", r.CIDR, r.First, r.Last))
	}
	return out
}

// The forms of a range, as whereabouts reads them.
func TestRanges(t *testing.T) {
	for _, tc := range []struct {
		ipam string
		want []string
	}{
		{`"range":"192.168.2.225/28"`, []string{"192.168.2.224/28 192.168.2.225-192.168.2.238"}},
		{`"range":"192.168.2.0/24","range_start":"192.168.2.10","range_end":"192.168.2.20"`, []string{"192.168.2.0/24 192.168.2.10-192.168.2.20"}},
		{`"range":"192.168.2.10-192.168.2.20/24"`, []string{"192.168.2.0/24 192.168.2.10-192.168.2.20"}},
		{`"range":"192.168.02.0/24"`, []string{"192.168.2.0/24 192.168.2.1-192.168.2.254"}},
		{`"range":"2001:db8::/64"`, []string{"2001:db8::/64 2001:db8::1-2001:db8::ffff:ffff:ffff:fffe"}},
		{`"range":"10.0.0.0/30","ipRanges":[{"range":"fd00::/120"},{"range":"10.1.0.0/24","range_start":"10.1.0.9"}]`,
			[]string{"10.0.0.0/30 10.0.0.1-10.0.0.2", "fd00::/120 fd00::1-fd00::fe", "10.1.0.0/24 10.1.0.9-10.1.0.254"}},
		// Ignored, with a warning.
		{`"range":"10.0.0.0/24","range_start":"10.9.0.1"`, []string{"10.0.0.0/24 10.0.0.1-10.0.0.254"}},
		{`"range":"10.0.0.0/24","range_start":"10.0.0.9","range_end":"10.0.0.2"`, []string{"10.0.0.0/24 10.0.0.9-10.0.0.254"}},
		{`"range":"10.0.0.0/24","range_start":"nonsense"`, []string{"10.0.0.0/24 10.0.0.1-10.0.0.254"}},
		// No warning: the network's address.
		{`"range":"10.0.0.0/24","range_start":"10.0.0.0"`, []string{"10.0.0.0/24 10.0.0.1-10.0.0.254"}},
	} {
		c, err := load(t, tc.ipam+","+kube, "")
		if err != nil {
			t.Errorf("%s: %v", tc.ipam, err)
			continue
		}
		if diff := cmp.Diff(tc.want, bounds(c)); diff != "" {
			t.Errorf("%s: %s", tc.ipam, diff)
		}
		ignored := strings.Contains(tc.ipam, "10.9.0.1") || strings.Contains(tc.ipam, "nonsense") || strings.Contains(tc.ipam, `"10.0.0.2"`)
		if (len(c.Warnings) == 1) != ignored {
			t.Errorf("%s: warnings %q", tc.ipam, c.Warnings)
		}
	}
}

// An error has code 7 (6 for a value of the wrong kind) and names key and value.
func TestRefused(t *testing.T) {
	for _, tc := range []struct{ ipam, args, rest, want string }{
		{`"range":"10.0.0.0"`, "", "", `ipam.range "10.0.0.0"`},
		{`"range":"10.0.0.0/31"`, "", "", `ipam.range "10.0.0.0/31"`},
		{`"range":"10.0.0.9-10.1.0.20/24"`, "", "", `ipam.range "10.0.0.9-10.1.0.20/24"`},
		{`"range":"10.0.0.0/24","exclude":["10.0.0.1","x"]`, "", "", `ipam.exclude[1] "x"`},
		{`"ipRanges":[{"range":"10.0.0.0/24","range_start":"x"}]`, "", "", `ipam.ipRanges[0].range_start "x"`},
		{`"range":"10.0.0.0/24","ipRanges":[{"range":"10.0.0.9/24"}]`, "", "", `ipam.ipRanges[0].range "10.0.0.9/24"`},
		{`"range":"fd00::/48","range_start":"fd00:0:0:1::5"`, "", "", `ipam.range_start "fd00:0:0:1::5"`},
		{`"gateway":"x"`, "", "", `ipam.gateway "x"`},
		{`"addresses":[{"address":"10.0.0.1"}]`, "", "", `ipam.addresses[0].address "10.0.0.1"`},
		{`"addresses":[{"address":"10.0.0.1/24","gateway":"g"}]`, "", "", `ipam.addresses[0].gateway "g"`},
		{`"block_size":0`, "", "", `ipam.block_size 0`},
		{`"block_size":5000`, "", "", `ipam.block_size 5000`},
		{`"datastore":"mysql"`, "", "", `ipam.datastore "mysql"`},
		{`"datastore":"etcd"`, "", "", `ipam.etcd_host ""`},
		{`"datastore":"etcd","etcd_host":"h","etcd_cert_file":"/c"`, "", "", `ipam.etcd_cert_file "/c"`},
		{`"datastore":"etcd","etcd_host":"h","block_size":121`, "", "", `ipam.block_size 121`},
		{`"datastore":"etcd","etcd_host":"h","node_slice_size":"/28"`, "", "", `ipam.node_slice_size "/28"`},
		{`"routes":[{"dst":"x"}]`, "", "", `ipam.routes[0]`},
		{`"range":"10.0.0.0/24"`, "IP=x", "", `IP=x`},
		{`"range":"10.0.0.0/24"`, "NOPE=x", "", `NOPE=x`},
		{`"range":"10.0.0.0/24"`, "", `,"runtimeConfig":{"ips":["x"]}`, `runtimeConfig.ips[0] "x"`},
		{`"range":"10.0.0.0/24"`, "", `,"args":{"cni":{"ips":["x"]}}`, `args.cni.ips[0] "x"`},
		{`"enable_overlapping_ranges":"yes"`, "", "", `enable_overlapping_ranges`},
	} {
		_, err := load(t, tc.ipam+","+kube, tc.args, tc.rest)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %s %s: %v", tc.ipam, tc.args, tc.rest, err)
			continue
		}
		if code := cnierr.From(err).Code; code != cnierr.CodeConfig && code != cnierr.CodeEnvironment && code != cnierr.CodeDecode {
			t.Errorf("%s: code %d", tc.ipam, code)
		}
	}
	for rest, want := range map[string]string{
		`,"args":{"cni":{"ipam-claim-reference":"c"}}`:                              `ipam-claim-reference "c"`,
		`,"allowPersistentIPs":true,"runtimeConfig":{"ipam-claim-reference":"d"}`:   `ipam-claim-reference "d"`,
		`,"allowPersistentIPs":true,"runtimeConfig":{"ipam-claim-reference":["d"]}`: `ipam-claim-reference`,
	} {
		args := ""
		if strings.Contains(rest, `"d"}`) {
			args = "ipam-claim-reference=c" // another one
		}
		if _, err := load(t, `"range":"10.0.0.0/24",`+kube, args, rest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rest, err)
		}
	}
	for _, ipam := range []string{`"datastore":"etcd","etcd_host":"h"`, `"range":"10.0.0.0/24","ipRanges":[{"range":"10.0.0.0/24","range_start":"10.0.0.9"}],` + kube} {
		if _, err := load(t, ipam, "", `,"allowPersistentIPs":true`); err == nil || !strings.Contains(err.Error(), "allowPersistentIPs") {
			t.Errorf("%s: %v", ipam, err)
		}
	}
	if _, err := load(t, `"range":"10.0.0.0/24"`, ""); err == nil || !strings.Contains(err.Error(), "ipam.kubernetes.kubeconfig") {
		t.Errorf("no store: %v", err)
	}
}

// The flat file fills in what the configuration leaves out, but enable_overlapping_ranges.
func TestFlatFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "whereabouts.conf")
	text := `{"datastore":"kubernetes","kubernetes":{"kubeconfig":"/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"},
		"range":"10.8.0.0/24","gateway":"10.8.0.1","log_level":"debug","enable_overlapping_ranges":false,"reconciler_cron_expression":"30 4 * * *"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	old := flatFiles
	t.Cleanup(func() { flatFiles = old })
	flatFiles = []string{filepath.Join(dir, "absent"), path}
	for _, tc := range []struct{ name, ipam, cidr string }{
		{"all from the file", `"routes":[]`, "10.8.0.0/24"},
		{"its own range", `"range":"10.9.0.0/24"`, "10.9.0.0/24"},
	} {
		c, err := load(t, tc.ipam, "")
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if c.Ranges[0].CIDR.String() != tc.cidr || c.Backend != Kubernetes || c.LogLevel != "debug" || !c.Overlapping {
			t.Errorf("%s: %+v", tc.name, c)
		}
		if c.Gateway != netip.MustParseAddr("10.8.0.1") {
			t.Errorf("%s: gateway %s", tc.name, c.Gateway)
		}
	}
	// configuration_path comes first: a file, as in old configurations, or the folder, as whereabouts' installer writes it.
	flatFiles = nil
	for _, p := range []string{path, dir} {
		if c, err := load(t, fmt.Sprintf(`"configuration_path":%q`, p), ""); err != nil || len(c.Ranges) != 1 {
			t.Errorf("%s: %v", p, err)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, fmt.Sprintf(`"configuration_path":%q`, path), ""); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}

func TestEtcd(t *testing.T) {
	for ipam, want := range map[string][]string{
		`"etcd_host":"10.0.0.1:2379"`: {"http://10.0.0.1:2379"},
		`"datastore":"etcd","etcd_host":"a:1, https://b:2","etcd_ca_cert_file":"/ca"`:    {"https://a:1", "https://b:2"},
		`"etcd_host":"a:1","etcd_cert_file":"/c","etcd_key_file":"/k","range":"1::/120"`: {"https://a:1"},
	} {
		c, err := load(t, ipam, "")
		if err != nil || c.Backend != Etcd {
			t.Errorf("%s: %v", ipam, err)
			continue
		}
		if diff := cmp.Diff(want, c.Etcd.Endpoints); diff != "" {
			t.Errorf("%s: %s", ipam, diff)
		}
	}
	// A configuration of old that names both is one of Kubernetes, as whereabouts takes it today.
	if c, err := load(t, `"etcd_host":"a:1",`+kube, ""); err != nil || c.Backend != Kubernetes {
		t.Errorf("both: %v", err)
	}
}

func TestCall(t *testing.T) {
	c, err := load(t, `"range":"10.0.0.0/24","exclude":["10.0.0.64/26","10.0.0.1"],"addresses":[{"address":"10.5.0.2/16"}],`+kube,
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u-1;IP=10.0.0.7/24,10.0.0.8;GATEWAY=10.5.0.1;FOO=1",
		`,"runtimeConfig":{"ips":["10.0.0.8/24"]},"args":{"cni":{"ips":["10.0.0.9"]}}`)
	if err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, w := range c.Wanted {
		wanted = append(wanted, w.Key+" "+w.Addr.String())
	}
	if diff := cmp.Diff([]string{"CNI_ARGS IP 10.0.0.7", "CNI_ARGS IP 10.0.0.8", "args.cni.ips[0] 10.0.0.9"}, wanted); diff != "" {
		t.Error(diff)
	}
	if c.PodRef() != "ns/web-0" || c.PodUID != "u-1" || c.Static[0].Gateway.String() != "10.5.0.1" || len(c.Ranges[0].Exclude) != 2 {
		t.Errorf("%+v", c)
	}
	if !c.Overlapping || c.BlockSize != DefaultBlockSize {
		t.Errorf("%+v", c)
	}
}
