// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A cached result that is read names a container, and its addresses are addresses. Anything else is an error: cleanup
// must not take a container for gone whose file it could not read.
func FuzzParseCached(f *testing.F) {
	for _, s := range []string{
		`{"kind":"cniCacheV1","containerId":"c","config":"e30=","ifName":"eth0","networkName":"n","netns":"/run/netns/c","result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c"}],"ips":[{"interface":0,"address":"10.1.0.2/16"},{"address":"fd00::2/64"}]}}`,
		`{"containerId":"c","ifName":"eth0","networkName":"n","result":{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/16"},"ip6":{"ip":"x"}}}`,
		`{"containerId":"","result":null}`, `{"containerId":"c","result":[]}`, `[]`, `{"containerID":7}`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var a Attachment
		var err error
		fuzztest.Bounded(t, len(raw), func() { a, err = parseCached(raw) })
		if err != nil {
			return
		}
		if a.Ref.ContainerID == "" {
			t.Error("accepted without a container")
		}
		for _, addr := range a.Addrs {
			if !addr.IsValid() {
				t.Errorf("accepted %v", a.Addrs)
			}
		}
	})
}
