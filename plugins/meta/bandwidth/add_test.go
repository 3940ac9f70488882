// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// The probe decides, and says why; what is configured goes first.
func TestChoose(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		noFQ            string
		err             error
		wanted          string
		backend, reason string
	}{
		"all there":         {wanted: BackendAuto, backend: BackendEDT, reason: "has sch_fq"},
		"no fq":             {noFQ: "no sch_fq", wanted: BackendAuto, backend: BackendTBF, reason: "no sch_fq"},
		"no datapath":       {err: loader.ErrUnavailable, wanted: BackendAuto, backend: BackendTBF, reason: loader.ErrUnavailable.Error()},
		"tbf wanted":        {wanted: BackendTBF, backend: BackendTBF, reason: "configured"},
		"edt wanted":        {wanted: BackendEDT, backend: BackendEDT, reason: "configured"},
		"edt wanted, no fq": {noFQ: "no sch_fq", wanted: BackendEDT, backend: BackendTBF, reason: "no sch_fq"},
	} {
		backend, reason := choose(&loadertest.Datapath{NoFQ: tt.noFQ}, tt.err, tt.wanted)
		if backend != tt.backend || !strings.Contains(reason, tt.reason) {
			t.Errorf("%s: %s because %q, want %s because %q", name, backend, reason, tt.backend, tt.reason)
		}
	}
}

// The log says what chose the backend.
func TestSaysWhatItChose(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.InfoLevel)
	j := &job{a: &cniskel.Args{Log: log.NewCore(core)}, s: section{
		Backend: BackendTBF, Reason: "no sch_fq",
		Ingress: &Limit{Rate: 125_000, Burst: minBurst, Derived: true}, Egress: &Limit{Rate: 125_000, Burst: 1000},
	}}
	j.say()
	warned := seen.FilterLevelExact(zapcore.WarnLevel).All()
	if len(warned) != 0 {
		t.Errorf("warned %+v", warned)
	}
	said := seen.FilterMessage("limited").All()
	if len(said) != 1 || said[0].ContextMap()[log.KeyReason] != "no sch_fq" || said[0].ContextMap()[log.KeyBackend] != BackendTBF {
		t.Errorf("said %+v", said)
	}
}

// A log warns once about bursts that the operator did not write. It does not about the largest number of a type from the runtime: a kubelet
// sends it with the rates of each pod.
func TestWarnsOfMissingBursts(t *testing.T) {
	t.Parallel()
	const largest = "4294967295"
	for name, tt := range map[string]struct{ keys, warns string }{
		"kubelet":                     {`"runtimeConfig":{"bandwidth":{"ingressRate":1000000,"ingressBurst":` + largest + `,"egressRate":1000000,"egressBurst":2147483647}}`, ""},
		"CRI-O":                       {`"runtimeConfig":{"bandwidth":{"ingressRate":1000000,"ingressBurst":34359738359}}`, ""},
		"a runtime without a burst":   {`"runtimeConfig":{"bandwidth":{"ingressRate":1000000,"egressRate":1000000}}`, "[runtimeConfig.bandwidth.ingressBurst runtimeConfig.bandwidth.egressBurst]"},
		"the operator, no burst":      {`"ingressRate":1000000,"egressRate":1000000,"egressBurst":0`, "[ingressBurst egressBurst]"},
		"the operator, largest burst": {`"egressRate":1000000,"egressBurst":` + largest, "[egressBurst]"},
		"a burst":                     {`"ingressRate":1000000,"ingressBurst":160000`, ""},
	} {
		core, seen := observer.New(zapcore.WarnLevel)
		r, err := parse([]byte(`{"cniVersion":"1.1.0","name":"net","type":"bandwidth",`+tt.keys+"}"), "auto")
		if err != nil {
			t.Fatal(err)
		}
		j := &job{a: &cniskel.Args{Log: log.NewCore(core)}, noBurst: r.noBurst, s: section{Ingress: r.ingress, Egress: r.egress}}
		j.say()
		got := ""
		for _, w := range seen.All() {
			got += fmt.Sprint(w.ContextMap()[log.KeyKey])
		}
		if got != tt.warns {
			t.Errorf("%s: warned of %q, want %q", name, got, tt.warns)
		}
	}
}
