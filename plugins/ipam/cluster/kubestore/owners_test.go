// SPDX-License-Identifier: Apache-2.0

package kubestore

import (
	"strings"
	"testing"
)

// The IPAMClaim of an interface is found where Multus and KubeVirt's webhook have it, by the name that Multus gives the interface.
func TestReference(t *testing.T) {
	t.Parallel()
	const list = `[{"name":"a"},{"name":"b","ipam-claim-reference":"two"},{"name":"c","interface":"pod7","ipam-claim-reference":"seven"}]`
	for _, tc := range []struct{ key, text, ifName, want string }{
		{networksKey, list, "net1", ""},
		{networksKey, list, "net2", "two"},
		{networksKey, list, "pod7", "seven"},
		{networksKey, list, "net3", ""},
		{networksKey, list, "eth0", ""},
		{networksKey, "a, ns/b@net5", "net2", ""},
		{networksKey, "", "net1", ""},
		{defaultNetworkKey, `[{"name":"d","namespace":"n","ipam-claim-reference":"zero"}]`, "eth0", "zero"},
		{defaultNetworkKey, `[{"name":"d","ipam-claim-reference":"zero"}]`, "net1", ""},
	} {
		var o podObject
		o.Metadata.Annotations = map[string]string{tc.key: tc.text}
		if got, err := reference(&o, tc.ifName); err != nil || got != tc.want {
			t.Errorf("%s %s of %s: %q %v", tc.key, tc.ifName, tc.text, got, err)
		}
	}
	var o podObject
	o.Metadata.Annotations = map[string]string{networksKey: `[{"name":`}
	if _, err := reference(&o, "net1"); err == nil || !strings.Contains(err.Error(), networksKey) {
		t.Errorf("a broken annotation: %v", err)
	}
}
