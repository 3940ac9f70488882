// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted mapping has both ports, a protocol and an address of the node, and each network is in its shortest form.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddStdin(f, Name,
		`{"cniVersion":"1.1.0","name":"n","type":"portmap","backend":"auto","snat":false,"masqAll":true,"conditionsV4":["!","-s","192.0.2.0/24"],"conditionsV6":["-d","fd00::/8","-p","tcp"],"allowedSources":["10.0.0.0/8"],"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"::"},{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1","allowedSources":["fd00::/8"]}]}}`,
		`{"cniVersion":"0.4.0","name":"n","type":"portmap","markMasqBit":5,"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":65535,"protocol":"sctp"}]}}`)
	f.Fuzz(func(t *testing.T, stdin []byte) {
		var s *settings
		var err error
		fuzztest.Bounded(t, len(stdin), func() { s, err = parse(stdin) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		for _, m := range slices.Concat(s.mappings...) {
			if m.Port == 0 || m.PodPort == 0 || m.Proto == 0 || !m.HostIP.IsValid() {
				t.Errorf("accepted %+v", m)
			}
		}
		for _, p := range s.sources {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("accepted the source %s", p)
			}
		}
	})
}
