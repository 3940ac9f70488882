// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/allowlist"
	"github.com/sluice-cni/sluice/pkg/helperproc"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	words := []string{"net.core.somaxconn", "net.ipv4.conf.IFNAME.rp_filter", "kernel.panic"}
	for name, tt := range map[string]struct {
		expressions []string
		want        allowlist.Answer
	}{
		"none":         {nil, allowlist.Answer{Matched: []bool{false, false, false}}},
		"not anchored": {[]string{"core", "rp_filter$"}, allowlist.Answer{Matched: []bool{true, true, false}}},
		"anchored":     {[]string{"^core", "^kernel\\.panic$"}, allowlist.Answer{Matched: []bool{false, false, true}}},
		"bad":          {[]string{"core", "(", "["}, allowlist.Answer{Bad: 2, Why: "error parsing regexp: missing closing ): `(`"}},
	} {
		in, err := json.Marshal(map[string]any{"job": allowlist.Job, "in": allowlist.Order{Expressions: tt.expressions, Words: words}})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := helperproc.Serve(t.Context(), Jobs(), bytes.NewReader(in), &out); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got struct{ Out allowlist.Answer }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got.Out); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
