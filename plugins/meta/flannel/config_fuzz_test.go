// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// What flannel makes of an accepted configuration is an object with the name and a type, and an IPAM section with the
// ranges of the node. It is saved, and read back the same.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddStdin(f, Name,
		`{"cniVersion":"1.0.0","name":"n","type":"flannel","delegate":{"type":"bridge","hairpinMode":true,"isDefaultGateway":true,"ipMasq":false},"ipam":{"type":"host-local","routes":[{"dst":"10.96.0.0/12"}]},"runtimeConfig":{"portMappings":[]}}`)
	own, err := parseSubnets(dualEnv)
	if err != nil {
		f.Fatal(err)
	}
	saved := filepath.Join(f.TempDir(), "saved")
	f.Fuzz(func(t *testing.T, stdin []byte) {
		var c *config
		var err error
		fuzztest.Bounded(t, len(stdin), func() { c, err = load(stdin) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		conf, kind, err := c.bareConf()
		if err == nil {
			conf["ipam"], err = c.ipam(conf["ipam"], own)
		}
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		text, err := json.Marshal(conf)
		if err != nil {
			t.Fatal(err)
		}
		var made, ipam object
		var ranges [][]struct{ Subnet string }
		if json.Unmarshal(text, &made) != nil || json.Unmarshal(made["ipam"], &ipam) != nil || json.Unmarshal(ipam["ranges"], &ranges) != nil {
			t.Fatalf("%s of %s", text, stdin)
		}
		to, err := typeOf(made, "type", "")
		if err != nil || to != kind || kind == "" || string(made["name"]) != string(quoted(c.Name)) || len(ranges) != len(own.own) {
			t.Errorf("%s of %s: %v", text, stdin, err)
		}
		if to, err := typeOf(ipam, "ipam.type", ""); err != nil || to == "" {
			t.Errorf("%s of %s: %v", text, stdin, err)
		}
		if err := os.WriteFile(saved, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if back, to, err := readSaved(saved); err != nil || string(back) != string(text) || to != kind {
			t.Errorf("saved for %q, read back for %q: %v", kind, to, err)
		}
	})
}

// A file in the directory of saved configurations may hold anything: of it, flannel takes only what has a type.
func FuzzReadSaved(f *testing.F) {
	for _, conf := range fuzztest.Configurations(f, "bridge") {
		f.Add([]byte(conf))
	}
	for _, text := range []string{"", "{}", `{"type":1}`, `{"type":"bridge","name":7}`, "null", `"bridge"`} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "saved")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		back, kind, err := readSaved(file)
		if err == nil && (kind == "" || string(back) != string(text)) {
			t.Errorf("%q gave type %q", text, kind)
		}
		_ = savedNetwork(file)
	})
}
