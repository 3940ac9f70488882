// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

// Survey asks the kernel every question of a load, now, and says where the programs for the node's own processes would go. It
// writes nothing down and mounts nothing, so it may be called on a node that has nothing loaded.
func (d Sets) Survey(ctx context.Context) (report []Probe, cgroup string, err error) {
	questions, err := d.questions(ctx)
	if err != nil {
		return nil, "", err
	}
	for i, q := range questions {
		if q.name == ProbeBPFFS {
			questions[i].ask = func() error { return d.Paths.BPFFS.Look() }
		}
	}
	cgroup, err = d.CgroupRoot()
	if errors.Is(err, pintree.ErrNoCgroup) {
		cgroup, err = "", nil
	}
	return d.require(runProbes(questions)), d.CgroupName(cgroup), err
}
