// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// Agent is the program and the service of a node that keeps the node's network where the cluster does not.
const Agent = "sluice-agent"

// agentUser is who the agents are to the API server.
const agentUser = "sluice-agent"

//go:embed manifests/agent.yaml
var agentRights string

// allowAgent gives the agents their rights.
func (c *Cluster) allowAgent(ctx context.Context) error {
	_, err := c.Kubectl(ctx, agentRights, "apply", "-f", "-")
	return err
}

func buildAgent(dir string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", filepath.Join(dir, Agent)}, testbin.BuildFlags()...), "github.com/sluice-cni/sluice/cmd/"+Agent)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", Agent, err, out)
	}
	return nil
}

// startAgent starts the agent of a node unless it runs already: a node that joins again has one.
func (c *Cluster) startAgent(i int) error {
	node := c.Node[i]
	states, err := node.Services()
	if err != nil || states[Agent].Running {
		return err
	}
	text := fmt.Sprintf("routing: %s\nnetwork: { plugin: %s }\nclusterCIDRs: [ %s ]\nserviceCIDRs: [ %s ]\n", c.Agent, c.Main, quoted(Pods), quoted(Services))
	config := filepath.Join(node.Dir, "agent.yaml")
	return errors.Join(os.WriteFile(config, []byte(text), 0o644), c.StartAgent(i))
}

// StartAgent starts the agent of a node, also after a stop.
func (c *Cluster) StartAgent(i int) error {
	return c.Node[i].StartService(machine.Service{Name: Agent, Args: []string{
		machine.Shared + "/sluice/" + Agent, "--config", machine.Shared + "/agent.yaml", "--kubeconfig", machine.Shared + "/agent.kubeconfig",
		"--node-name", c.Node[i].Name,
	}})
}
