// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

func wantCode(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	switch e := cnierr.From(err); {
	case code == 0 && err != nil:
		t.Errorf("error %v, want none", err)
	case code == 0:
	case err == nil:
		t.Errorf("no error, want code %d", code)
	case e.Code != code:
		t.Errorf("code %d (%v), want %d", e.Code, err, code)
	default:
		for _, w := range words {
			if !strings.Contains(e.Error(), w) {
				t.Errorf("error %q does not say %q", e.Error(), w)
			}
		}
	}
}

type conf struct {
	Common
	MTU int `json:"mtu"`
}

func TestLoad(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in string
		want     conf
		code     uint
		words    []string
	}{
		{name: "any case, unknown keys", in: `{"CNIVERSION":"1.0.0","Name":"n","mTu":9,"zz":1}`, want: conf{Common: Common{CNIVersion: "1.0.0", Name: "n"}, MTU: 9}},
		{name: "not JSON", in: `{"name":`, code: 6},
		{name: "empty", in: ``, code: 6},
		{name: "wrong type", in: `{"mtu":"s3cret"}`, code: 6, words: []string{`"mtu"`, "string"}},
		{name: "a list", in: `[]`, code: 6},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got conf
			err := Load([]byte(tc.in), &got)
			wantCode(t, err, tc.code, tc.words...)
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Error("the error repeats the configuration")
			}
			if tc.code == 0 {
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestParseArgs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in, want string
		code           uint
	}{
		{name: "empty"},
		{name: "known", in: "MAC=a", want: "a"},
		{name: "ignored", in: "K8S=x;MAC=a;IgnoreUnknown=1", want: "a"},
		{name: "ignore in any case of true", in: "K8S=x;IgnoreUnknown=TRUE"},
		{name: "unknown", in: "K8S=x", code: 4},
		{name: "key case matters", in: "mac=a", code: 4},
		{name: "not ignored", in: "K8S=x;IgnoreUnknown=false", code: 4},
		{name: "bad boolean", in: "IgnoreUnknown=yes", code: 4},
		{name: "trailing semicolon", in: "MAC=a;", code: 4},
		{name: "two equal signs", in: "MAC=a=b", code: 4},
		{name: "refused value", in: "MAC=bad", code: 4},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			err := ParseArgs(tc.in, map[string]func(string) error{"MAC": func(s string) error {
				if s == "bad" {
					return errors.New("no")
				}
				got = s
				return nil
			}})
			wantCode(t, err, tc.code)
			if tc.code == 0 && got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestValidAttachments(t *testing.T) {
	t.Parallel()
	a := []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}}
	tests := []struct {
		name, in string
		want     []types.GCAttachment
		code     uint
	}{
		{name: "list", in: `{"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/attachments":[]}`, want: a},
		{name: "old name", in: `{"cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}]}`, want: a},
		{name: "empty", in: `{"cni.dev/valid-attachments":[]}`, want: []types.GCAttachment{}},
		{name: "null", in: `{"cni.dev/valid-attachments":null}`},
		{name: "absent", in: `{}`, code: 7},
		{name: "no list", in: `{"cni.dev/valid-attachments":"x"}`, code: 6},
		{name: "no id", in: `{"cni.dev/valid-attachments":[{"ifname":"eth0"}]}`, code: 7},
		{name: "no interface", in: `{"cni.dev/valid-attachments":[{"containerID":"c"}]}`, code: 7},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := ValidAttachments([]byte(tc.in))
			wantCode(t, err, tc.code)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidRefs(t *testing.T) {
	t.Parallel()
	got, err := ValidRefs([]byte(`{"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}`), "net")
	wantCode(t, err, 0)
	if diff := cmp.Diff(map[attachments.ID]bool{{Network: "net", ContainerID: "c", IfName: "eth0"}: true}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err = ValidRefs([]byte(`{}`), "net")
	wantCode(t, err, 7)
}

func TestBadIfName(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]bool{
		"eth0": false, "eth0.100": false, "abcdefghijklmno": false, "...": false,
		"abcdefghijklmnop": true, ".": true, "..": true, "a/b": true, "a:b": true, "eth%d": true, "a b": true, "a\tb": true, "a\x00": true, "a\x01": true, "a\x7f": true,
	} {
		if why := BadIfName(name); (why != "") != bad {
			t.Errorf("%q: %q", name, why)
		}
	}
}

func TestParseMAC(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{
		"0A:11:22:33:44:55": true, "0a-11-22-33-44-55": true,
		"": false, "x": false, "01:00:5e:00:00:01": false, "00:00:00:00:00:00": false, "02:00:5e:10:00:00:00:01": false,
	} {
		_, err := ParseMAC("mac", in)
		if ok {
			wantCode(t, err, 0)
		} else {
			wantCode(t, err, 7, "mac")
		}
	}
}

func TestPrevResult(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, version, in string
		ips               int
		none              bool
		code              uint
	}{
		{name: "absent", version: "1.0.0", in: `{}`, none: true},
		{name: "null", version: "1.0.0", in: `{"prevResult":null}`, none: true},
		{name: "1.1", version: "1.1.0", in: `{"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/24"}]}}`, ips: 1},
		{name: "no inner version", version: "0.4.0", in: `{"prevResult":{"ips":[{"version":"4","address":"10.0.0.1/24"}]}}`, ips: 1},
		{name: "empty inner version", version: "0.4.0", in: `{"prevResult":{"cniVersion":"","ips":[{"version":"4","address":"10.0.0.1/24"}]}}`, ips: 1},
		{name: "same generation", version: "1.0.0", in: `{"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/24"}]}}`, ips: 1},
		{name: "0.2", version: "", in: `{"PrevResult":{"ip4":{"ip":"10.0.0.1/24"},"ip6":{"ip":"fd00::1/64"}}}`, ips: 2},
		{name: "other generation", version: "0.4.0", in: `{"prevResult":{"cniVersion":"1.0.0"}}`, code: 6},
		{name: "null entry", version: "1.0.0", in: `{"prevResult":{"ips":[null]}}`, code: 6},
		{name: "null entry under another spelling", version: "1.0.0", in: `{"prevResult":{"ipſ":[null]}}`, code: 6},
		{name: "null interface", version: "0.3.1", in: `{"prevResult":{"interfaces":[null]}}`, code: 6},
		{name: "no object", version: "1.0.0", in: `{"prevResult":[]}`, code: 6},
		{name: "bad address", version: "1.0.0", in: `{"prevResult":{"ips":[{"address":"10.0.0.1"}]}}`, code: 6},
		{name: "unknown version", version: "3.0.0", in: `{"prevResult":{}}`, code: 6},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := PrevResult([]byte(tc.in), tc.version)
			wantCode(t, err, tc.code)
			if err != nil {
				return
			}
			if tc.none != (got == nil) {
				t.Fatalf("got %+v", got)
			}
			if got != nil && len(got.IPs) != tc.ips {
				t.Errorf("got %d addresses, want %d", len(got.IPs), tc.ips)
			}
		})
	}
}

func TestConvert(t *testing.T) {
	t.Parallel()
	res, err := PrevResult([]byte(`{"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.1/24"}]}}`), "1.1.0")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		out, err := Convert(res, v)
		wantCode(t, err, 0)
		if err == nil && out.Version() != VersionOrDefault(v) {
			t.Errorf("Convert(%s) has version %s", v, out.Version())
		}
	}
	res.IPs = nil
	_, err = Convert(res, "0.2.0")
	wantCode(t, err, 2, "0.2.0")
	_, err = Convert(res, "0.3.0")
	wantCode(t, err, 0)
}

func FuzzPrevResult(f *testing.F) {
	f.Add([]byte(`{"prevResult":{"ips":[{"address":"10.0.0.1/24"}]}}`), "1.0.0")
	f.Add([]byte(`{"prevResult":{"ip4":{"ip":"10.0.0.1/24"}}}`), "0.2.0")
	f.Add([]byte(`{"prevResult":{"ips":[null]}}`), "0.4.0")
	f.Fuzz(func(t *testing.T, in []byte, version string) {
		if _, err := PrevResult(in, version); err != nil && cnierr.From(err).Code == 100 {
			t.Errorf("error without a code: %v", err)
		}
	})
}
