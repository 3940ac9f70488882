// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
)

// metrics writes those of the node, as "sluice metrics" prints them, and the agent's own. The command is a process of its own: the agent
// keeps neither the loader nor its memory (ADR 45). What the command says of parts that it could not read is in its metrics too.
func (a *agent) metrics(ctx context.Context, w io.Writer) error {
	var out, errs bytes.Buffer
	args := []string{"metrics"}
	if a.Config.Health.PodMetrics {
		args = append(args, "--pods")
	}
	c := exec.CommandContext(ctx, filepath.Join(a.Programs, "sluice"), args...)
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		a.report.Count(report.MetricsFailed, 1)
		a.Log.Warn("metrics of the node", log.Error(fmt.Errorf("%w: %s", err, bytes.TrimSpace(errs.Bytes()))))
	}
	if ctx.Err() != nil { // it was ended in the middle of a line
		out.Reset()
	}
	_, err := w.Write(out.Bytes())
	err = errors.Join(err, a.report.WriteMetrics(w))
	if a.policies != nil {
		err = errors.Join(err, a.policies.WriteMetrics(w))
	}
	return err
}
