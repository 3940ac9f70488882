// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A device that is accepted is named by something that stays in its directory of sysfs, whatever the runtime's
// device plugin or an annotation says.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name, `{"cniVersion":"1.0.0","name":"n","type":"host-device","runtimeConfig":{"deviceID":"0000:00:1f.6"}}`,
		`{"cniVersion":"1.0.0","name":"n","type":"host-device","kernelpath":"/sys/devices/pci0000:00/../../class"}`,
		`{"cniVersion":"1.0.0","name":"n","type":"host-device","kernelpath":"/sys/devices/a\u001b[2J"}`)
	root := f.TempDir()
	for _, bus := range []string{pciDevices, auxDevices} {
		if err := os.MkdirAll(filepath.Join(root, bus, "0000:00:1f.6"), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	p := &plugin{sys: sysfs{root}}
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *request
		var err error
		fuzztest.Bounded(t, len(stdin), func() { r, err = p.parse(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		for what, id := range map[string]string{"pciBusID": r.PCIBusID, "deviceID": r.aux} {
			if id != "" && (filepath.Base(id) != id || strings.ContainsAny(id, "/\x00")) {
				t.Errorf("%s %q leaves the directory of its bus", what, id)
			}
		}
		if k := r.KernelPath; k != "" && (!strings.HasPrefix(filepath.Join(root, k), filepath.Join(root, "sys/devices")+"/") || strings.ContainsFunc(k, unicode.IsControl)) {
			t.Errorf("kernelpath %q leaves /sys/devices", k)
		}
		if why := cniconf.BadLinkName(r.Device); why != "" {
			t.Errorf("device %q: %s", r.Device, why)
		}
	})
}
