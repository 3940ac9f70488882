// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// Of CNI_ARGS that are accepted, each known key has arrived as it stands there, and there is no other key unless
// IgnoreUnknown is.
func FuzzParseArgs(f *testing.F) {
	for _, args := range []string{
		"", "IgnoreUnknown=1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default", "MAC=02:00:00:00:00:01;IP=10.0.0.7/24", "MAC=a;MAC=b", "IgnoreUnknown=maybe",
		"=", ";", "MAC", "MAC==", "MAC=;IgnoreUnknown=true;X=1", "IgnoreUnknown=false;X=1", "mac=x", " MAC=x", "MAC=\x00",
	} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, args string) {
		var got []string
		take := func(key string) func(string) error {
			return func(v string) error { got = append(got, key+"="+v); return nil }
		}
		var err error
		fuzztest.Bounded(t, len(args), func() {
			err = ParseArgs(args, map[string]func(string) error{"MAC": take("MAC"), "IP": take("IP")})
		})
		if err != nil {
			fuzztest.Refused(t, err, len(args), "invalid CNI_ARGS ")
			if c := cnierr.From(err).Code; c != cnierr.CodeEnvironment {
				t.Errorf("code %d", c)
			}
			return
		}
		var want []string
		unknown, ignore := false, false
		for pair := range strings.SplitSeq(args, ";") {
			switch key, v, _ := strings.Cut(pair, "="); {
			case args == "":
			case key == "MAC" || key == "IP":
				want = append(want, pair)
			case key == "IgnoreUnknown":
				ignore = v == "1" || strings.EqualFold(v, "true")
			default:
				unknown = true
			}
		}
		if strings.Join(got, ";") != strings.Join(want, ";") || unknown && !ignore {
			t.Errorf("%q gave %q", args, got)
		}
	})
}
