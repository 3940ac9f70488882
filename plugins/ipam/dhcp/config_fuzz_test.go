// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted option has a value that a message can carry.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name,
		`{"cniVersion":"1.1.0","name":"n","type":"macvlan","ipam":{"type":"dhcp","daemonSocketPath":"/run/x.sock","priority":7,"request":[{"option":"routers","skipDefault":true},{"option":"121"}],"provide":[{"option":"host-name","value":"x","fromArg":"K8S_POD_NAME"},{"option":"61","value":"id"}]}}`)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		size := len(stdin) + len(args)
		var c *config
		var o *exchangeOptions
		var err error
		fuzztest.Bounded(t, size, func() {
			if c, err = load(stdin); err == nil {
				o, err = c.exchangeOptions(args)
			}
		})
		if err != nil {
			fuzztest.Refused(t, err, size)
			return
		}
		fuzztest.Between(t, "priority", c.IPAM.Priority, 0, int(^uint(0)>>1))
		for _, p := range o.provide {
			if n := len(p.Value.ToBytes()); n > maxOption {
				t.Errorf("accepted option %d of %d bytes", p.Code.Code(), n)
			}
		}
	})
}

// A file of the state directory may hold anything. A lease is taken from it only if the file has the lease's name, and
// a file that says nothing of use is removed.
func FuzzReadStates(f *testing.F) {
	good := &state{
		Version: stateVersion, ContainerID: "c", Network: "n", IfName: "eth0", NetNS: "/x", Inode: 1,
		IPAM: &ipamConfig{Type: Name}, ACK: ackOf(f).ToBytes(), At: time.Unix(1, 0).UTC(),
	}
	text, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, odd := range fuzztest.Odd(f, string(text)) {
		f.Add([]byte(odd))
	}
	dir := f.TempDir()
	file := stateFile(dir, good.id())
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		states, err := readStates(dir)
		_, gone := os.Stat(file)
		switch {
		case err != nil && (len(states) != 0 || gone == nil):
			t.Errorf("%d leases of a bad file, which stays: %v", len(states), err)
		case err == nil && (len(states) != 1 || stateFile(dir, states[0].id()) != file || states[0].IPAM == nil):
			t.Errorf("%q gave %+v", text, states)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 1 {
			t.Errorf("left behind: %v", left)
		}
	})
}
