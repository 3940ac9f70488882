// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

// Survey is loader.Survey.
func Survey(ctx context.Context, t *pintree.Tree) (report []Probe, cgroup string, err error) {
	questions, err := questions(ctx, t)
	if err != nil {
		return nil, "", err
	}
	for i, q := range questions {
		if q.name == ProbeBPFFS {
			questions[i].ask = func() error { return t.Paths.BPFFS.Look() }
		}
	}
	cgroup, err = t.CgroupRoot()
	if errors.Is(err, pintree.ErrNoCgroup) {
		cgroup, err = "", nil
	}
	return require(t, runProbes(questions)), t.CgroupName(cgroup), err
}
