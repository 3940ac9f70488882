// SPDX-License-Identifier: Apache-2.0

package match

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	words := []string{"net.core.somaxconn", "net.ipv4.conf.IFNAME.rp_filter", "kernel.panic"}
	for name, tt := range map[string]struct {
		expressions []string
		want        sysctlallow.Answer
	}{
		"none":         {nil, sysctlallow.Answer{Matched: []bool{false, false, false}}},
		"not anchored": {[]string{"core", "rp_filter$"}, sysctlallow.Answer{Matched: []bool{true, true, false}}},
		"anchored":     {[]string{"^core", "^kernel\\.panic$"}, sysctlallow.Answer{Matched: []bool{false, false, true}}},
		"bad":          {[]string{"core", "(", "["}, sysctlallow.Answer{Bad: 2, Why: "error parsing regexp: missing closing ): `(`"}},
	} {
		in, err := json.Marshal(map[string]any{"job": sysctlallow.Job, "in": sysctlallow.Order{Expressions: tt.expressions, Words: words}})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := helperproc.Serve(t.Context(), Jobs(), bytes.NewReader(in), &out); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got struct{ Out sysctlallow.Answer }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got.Out); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
