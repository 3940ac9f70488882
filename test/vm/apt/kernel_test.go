// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPickKernel(t *testing.T) {
	names := []string{
		"linux-image-5.10.0-9-cloud-amd64", "linux-image-5.10.0-32-cloud-amd64", "linux-image-5.10.0-32-cloud-amd64-dbg",
		"linux-image-5.10.0-32-cloud-amd64-unsigned", "linux-image-5.10.0-33-amd64", "linux-image-5.1.0-99-cloud-amd64",
		"linux-image-6.12.9+deb13-cloud-amd64", "linux-image-6.12.107+deb13-cloud-amd64", "linux-image-6.12.107+deb12-cloud-amd64",
		"linux-image-7.2.13+deb14-cloud-amd64", "linux-binary-7.2.13+deb14-cloud-amd64", "linux-modules-7.2.13+deb14-cloud-amd64",
		"linux-image-7.3~rc1-cloud-amd64", "linux-image-7.3.1~rc1-cloud-amd64", "linux-image-cloud-amd64", "linux-image-6.18.15+deb13-cloud-arm64",
	}
	tests := map[string]Kernel{
		"5.10": {"5.10.0-32-cloud-amd64", []string{"linux-image-5.10.0-32-cloud-amd64"}},
		"5.1":  {"5.1.0-99-cloud-amd64", []string{"linux-image-5.1.0-99-cloud-amd64"}},
		"6.12": {"6.12.107+deb13-cloud-amd64", []string{"linux-image-6.12.107+deb13-cloud-amd64"}},
		"7.2": {"7.2.13+deb14-cloud-amd64", []string{
			"linux-binary-7.2.13+deb14-cloud-amd64", "linux-modules-7.2.13+deb14-cloud-amd64", "linux-base-7.2.13+deb14-cloud-amd64"}},
	}
	tests[Newest] = tests["7.2"]
	for series, want := range tests {
		got, err := PickKernel(names, series)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", series, err, d)
		}
	}
	for _, series := range []string{"6.18", "7.3", "5", "", "6.1"} {
		if got, err := PickKernel(names, series); err == nil {
			t.Errorf("%q: found %v", series, got)
		}
	}
}

func TestMirrorPatterns(t *testing.T) {
	for uri, want := range map[string][2]bool{
		"http://192.0.2.1/debian/":          {true, false},
		"https://192.0.2.1/pub/debian":      {true, false},
		"http://192.0.2.1/debian-security/": {false, true},
		"http://192.0.2.1/ubuntu/":          {false, false},
		"cdrom:[x]/debian/":                 {false, false},
	} {
		if got := [2]bool{mainMirror.MatchString(uri), securityMirror.MatchString(uri)}; got != want {
			t.Errorf("%s: %v, want %v", uri, got, want)
		}
	}
}
