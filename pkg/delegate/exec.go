// SPDX-License-Identifier: Apache-2.0

package delegate

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/sluice-cni/sluice/pkg/cniplugin"
)

// execPlugin runs the file with the caller's call, only the verb replaced, and
// returns its stdout. The library retries a file that is just being written
// and passes stderr on.
func execPlugin(ctx context.Context, path, verb string, a *cniplugin.Args) ([]byte, error) {
	env := (&invoke.Args{
		Command: verb, ContainerID: a.ContainerID, NetNS: a.Netns,
		PluginArgsStr: a.Args, IfName: a.IfName, Path: a.Path,
	}).AsEnv()
	out, err := (&invoke.RawExec{Stderr: os.Stderr}).ExecPlugin(ctx, path, a.StdinData, env)
	if err != nil {
		return nil, coded(err, path)
	}
	return out, nil
}
