// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequested(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, cniArgs, ips string
		want               []string
		code               uint
	}{
		{name: "one", ips: `"10.1.0.12"`, want: []string{"10.1.0.12/24", "10.2.0.2/30", "fd00::10/64"}},
		{name: "with prefix, both families", ips: `"10.1.0.12/8","fd00::99/64"`, want: []string{"10.1.0.12/24", "10.2.0.2/30", "fd00::99/64"}},
		{name: "CNI_ARGS adds", cniArgs: "IP=10.2.1.2", ips: `"fd00::99"`, want: []string{"10.1.0.10/24", "10.2.1.2/30", "fd00::99/64"}},
		{name: "same twice", cniArgs: "IP=10.1.0.12", ips: `"10.1.0.12/24"`, want: []string{"10.1.0.12/24", "10.2.0.2/30", "fd00::10/64"}},
		{name: "two of one set", ips: `"10.1.0.12","10.1.0.11"`, code: 7},
		{name: "outside the range", ips: `"10.1.0.99"`, code: 7},
		{name: "gateway", ips: `"10.2.0.1"`, code: 7},
		{name: "taken", ips: `"10.1.0.11"`, code: 103},
		{name: "no address", ips: `"x"`, code: 7},
		{name: "bad CNI_ARGS", cniArgs: "IP=x", code: 4},
		{name: "CNI_ARGS of the interface plugin", cniArgs: "MAC=aa:bb:cc:dd:ee:ff", ips: `"10.1.0.12"`, want: []string{"10.1.0.12/24", "10.2.0.2/30", "fd00::10/64"}},
		{name: "unknown CNI_ARGS", cniArgs: "FOO=x", code: 4},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, dual)
			b.put("10.1.0.11", "other\r\neth0")
			b.args = tc.cniArgs
			got, err := b.add("pod", "eth0", tc.ips)
			wantCode(t, err, tc.code)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if err != nil {
				files := b.files()
				for i := range 3 {
					delete(files, lastPrefix+fmt.Sprint(i))
				}
				if diff := cmp.Diff(map[string]string{"10.1.0.11": "other\r\neth0"}, files); diff != "" {
					t.Errorf("left behind (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, ipam string
		version    string
		code       uint
		words      []string
	}{
		{name: "no ipam", ipam: `null`, code: 7, words: []string{"ipam"}},
		{name: "no ranges", ipam: `{}`, code: 7, words: []string{"ipam.ranges"}},
		{name: "empty inner list", ipam: `{"ranges":[[]]}`, code: 7, words: []string{"ipam.ranges[0]"}},
		{name: "bad subnet", ipam: `{"ranges":[[{"subnet":"10.0.0"}]]}`, code: 7, words: []string{"ipam.ranges[0][0].subnet", "10.0.0"}},
		{name: "host bits", ipam: `{"subnet":"10.0.0.9/24"}`, code: 7, words: []string{"ipam.subnet", "10.0.0.0/24"}},
		{name: "too small", ipam: `{"subnet":"10.0.0.0/31"}`, code: 7},
		{name: "start outside", ipam: `{"subnet":"10.0.0.0/24","rangeStart":"10.0.1.1"}`, code: 7, words: []string{"ipam.rangeStart", "10.0.1.1"}},
		{name: "end before start", ipam: `{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","rangeEnd":"10.0.0.8"}`, code: 7},
		{name: "bad gateway", ipam: `{"subnet":"10.0.0.0/24","gateway":"gw"}`, code: 7, words: []string{"ipam.gateway", "gw"}},
		{name: "mixed families", ipam: `{"ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"fd00::/64"}]]}`, code: 7},
		{name: "overlap in a set", ipam: `{"ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"10.0.0.0/25"}]]}`, code: 7},
		{name: "overlap of sets", ipam: `{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.0.0.0/25"}]]}`, code: 7},
		{name: "two of a family in 0.2", ipam: `{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.0.1.0/24"}]]}`, version: "0.2.0", code: 7, words: []string{"0.2.0"}},
		{name: "bad route", ipam: `{"subnet":"10.0.0.0/24","routes":[{"dst":"x"}]}`, code: 7, words: []string{"ipam.routes[0]"}},
		{name: "null route", ipam: `{"subnet":"10.0.0.0/24","routes":[null]}`, code: 7, words: []string{"ipam.routes[0]"}},
		{name: "no resolv.conf", ipam: `{"subnet":"10.0.0.0/24","resolvConf":"/no/such/file"}`, code: 5, words: []string{"ipam.resolvConf", "/no/such/file"}},
		{name: "ranges is a string", ipam: `{"ranges":"x"}`, code: 6, words: []string{"ranges"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.version == "" {
				tc.version = "1.1.0"
			}
			ipam := strings.Replace(tc.ipam, "{", fmt.Sprintf(`{"dataDir":"%s",`, "%D"), 1)
			ipam = strings.Replace(ipam, ",}", "}", 1)
			b := newBench(t, fmt.Sprintf(`{"cniVersion":%q,"name":"net","ipam":%s}`, tc.version, ipam))
			_, err := b.add("pod", "eth0")
			wantCode(t, err, tc.code, tc.words...)
			if entries, err := os.ReadDir(b.data); err != nil || len(entries) != 0 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}

// The error names the keys that the ranges stand under. ipam.ranges need not be one of them.
func TestOverlapNamesKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t, `{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"%D","subnet":"10.1.0.0/24"}%s}`)
	_, err := b.add("pod", "eth0", `,"runtimeConfig":{"ipRanges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"10.1.0.0/25"}]]}`)
	wantCode(t, err, 7, "ipam.subnet", "10.1.0.1-10.1.0.254", "runtimeConfig.ipRanges[1]", "10.1.0.1-10.1.0.126")
	b.conf = `{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"%D","subnet":"10.1.0.0/24","ranges":[[{"subnet":"10.1.0.0/25"}]]}}`
	_, err = b.add("pod", "eth0")
	wantCode(t, err, 7, "ipam.subnet", "ipam.ranges[0]")
}
