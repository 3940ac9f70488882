// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// Every object has the program of its name, the constants that are asked for, and the size of a map.
func TestConfigure(t *testing.T) {
	t.Parallel()
	o := loadapi.LoadRequest{
		Sizes: map[string]uint32{"sl_ct": 4096},
		Constants: loadapi.Constants{
			FastPath: 2, AntiSpoof: true, AdmitMark: 0x1000, FIBSrc: true, Coarse: true, SkNetns: true, Netkit: true, NetnsCookie: 1<<40 + 1,
			SNAT: [2][2]uint16{{61000, 65535}, {1024, 32767}}, SNATSecret: 77, CBCookie: [2]uint32{78, 79},
		},
	}
	for name := range read {
		o.Objects = append(o.Objects, name)
	}
	specs, err := configure(o)
	if err != nil {
		t.Fatal(err)
	}
	clients := []string{clientIngress, clientEgress}
	for name, spec := range specs {
		if name != loadapi.SockLB && (spec.Programs[name] == nil || len(spec.Programs) != 1) {
			t.Errorf("%s: %v", name, spec.Programs)
		}
		if m := spec.Maps["sl_ct"]; m != nil && m.MaxEntries != 4096 {
			t.Errorf("%s: sl_ct has %d entries", name, m.MaxEntries)
		}
		for constant, want := range map[string]uint64{
			objects.FromPodVarCfgFastPath: 2, objects.FromPodVarCfgAntiSpoof: 1, objects.FromPodVarCfgAdmitMark: 0x1000, objects.FromPodVarCfgFibSrc: 1,
			objects.FromPodVarCfgCoarseClock: 1, objects.FromPodVarCfgSkNetns: 1, objects.FromPodVarCfgNetkit: 1, objects.FromPodVarCfgNetnsCookie: 1<<40 + 1, objects.FromPodVarCfgSnatSecret: 77,
			objects.FromPodVarCfgSnatMin1: 61000, objects.FromPodVarCfgSnatMax1: 65535, objects.FromPodVarCfgSnatMin2: 1024, objects.FromPodVarCfgSnatMax2: 32767,
			objects.FromPodVarCfgCbCookie1: 78, objects.FromPodVarCfgCbCookie2: 79,
		} {
			var b [8]byte
			copy(b[:], spec.Variables[constant].Value)
			if constant == objects.FromPodVarCfgFastPath && slices.Contains(clients, name) {
				want = 0
			}
			if got := binary.NativeEndian.Uint64(b[:]); got != want {
				t.Errorf("%s: %s is %d, want %d", name, constant, got, want)
			}
		}
	}
	for name, spec := range specs {
		if v := spec.Variables[objects.FromUplinkVarCfgClients]; v != nil && (v.Value[0] == 1) != slices.Contains(clients, name) {
			t.Errorf("%s: cfg_clients is %d", name, v.Value[0])
		}
	}
	for _, name := range []string{l3Ingress, l3Egress} {
		if v := specs[name].Variables[objects.FromUplinkVarCfgL2Len].Value; v[0] != 0 {
			t.Errorf("%s expects %d bytes of link header", name, v[0])
		}
	}
}

func TestOrderThatCannotBe(t *testing.T) {
	t.Parallel()
	if _, err := (InProcess{}).Pin(t.Context(), loadapi.LoadRequest{Build: "0123"}); err == nil || !strings.Contains(err.Error(), "0123") {
		t.Errorf("another build: %v", err)
	}
	o := loadapi.LoadRequest{Build: bpfgen.Build, Objects: []string{"sl_nonesuch"}}
	if _, err := (InProcess{}).Pin(t.Context(), o); err == nil || !strings.Contains(err.Error(), "sl_nonesuch") {
		t.Errorf("another program: %v", err)
	}
}
