// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"
)

// Times are of the ADDs of all nodes, and of those between two readings.
func TestADDTimes(t *testing.T) {
	const before = `# TYPE containerd_cri_network_plugin_operations_duration_seconds_seconds histogram
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="0.1"} 1
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="0.25"} 1
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="+Inf"} 1
containerd_cri_network_plugin_operations_duration_seconds_seconds_sum{operation_type="set_up_pod"} 0.05
containerd_cri_network_plugin_operations_duration_seconds_seconds_count{operation_type="set_up_pod"} 1
containerd_cri_network_plugin_operations_duration_seconds_seconds_count{operation_type="tear_down_pod"} 7
`
	const after = `containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="0.1"} 6
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="0.25"} 11
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="+Inf"} 11
containerd_cri_network_plugin_operations_duration_seconds_seconds_sum{operation_type="set_up_pod"} 1.05
containerd_cri_network_plugin_operations_duration_seconds_seconds_count{operation_type="set_up_pod"} 11
`
	read := func(texts ...string) Times {
		t.Helper()
		all := Times{Buckets: map[float64]float64{}}
		for _, text := range texts {
			if err := all.add(text); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	got := read(after, after).Since(read(before, before))
	if got.Count != 20 || got.Mean().Round(time.Millisecond) != 100*time.Millisecond {
		t.Errorf("%+v, mean %s", got, got.Mean())
	}
	for q, want := range map[float64]time.Duration{0.25: 50 * time.Millisecond, 0.5: 100 * time.Millisecond, 0.75: 175 * time.Millisecond, 1: 250 * time.Millisecond} {
		if d := got.Quantile(q); d.Round(time.Millisecond) != want {
			t.Errorf("quantile %v is %s, want %s", q, d, want)
		}
	}
	if read().Quantile(0.5) != 0 || read().Mean() != 0 {
		t.Error("no ADD took time")
	}
	bad := read()
	if err := bad.add(`containerd_cri_network_plugin_operations_duration_seconds_seconds_count{operation_type="set_up_pod"} many`); err == nil {
		t.Error("no number is taken for one")
	}
}
