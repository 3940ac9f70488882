// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

// agentProgram is beside this one. It is a program of its own, because of the size of what talks to an API server (ADR 35).
const agentProgram = "sluice-agent"

func newAgent() *cobra.Command {
	return &cobra.Command{
		Use:   "agent [ARGUMENT...]",
		Short: "Run the node agent, sluice-agent",
		Long: `Run the node agent: the program sluice-agent that lies beside this one, with all
arguments. "sluice agent --help" shows its own help.`,
		Example: `  sluice agent check-config /etc/sluice/agent.yaml`,
		// The flags are the agent's.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := helperproc.SiblingPath(agentProgram)
			if err != nil {
				return err
			}
			err = unix.Exec(path, append([]string{path}, args...), os.Environ())
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no %s: the node agent is optional, and not installed here", path)
			}
			return fmt.Errorf("start %s: %w", path, err)
		},
	}
}
