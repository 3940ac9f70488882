// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// startAgent starts the agent of a node unless it runs already: a node that joins again has one.
func (c *Cluster) startAgent(i int) error {
	node := c.Node[i]
	states, err := node.Services()
	if err != nil || states[Agent].Running {
		return err
	}
	text := fmt.Sprintf("routing: %s\nnetwork: { plugin: %s }\nclusterCIDRs: [ %s ]\nserviceCIDRs: [ %s ]\n", c.Agent, c.Main, quoted(Pods), quoted(Services))
	if c.NetworkPolicy {
		text += "networkPolicy: { enabled: true }\n"
	}
	config := filepath.Join(node.Dir, "agent.yaml")
	return errors.Join(os.WriteFile(config, []byte(text), 0o644), c.StartAgent(i, Sluice))
}

// StartAgent starts the agent of a node, also after a stop. It is one of this build, or of the one before.
func (c *Cluster) StartAgent(i int, build Plugins) error {
	return c.Node[i].StartService(machine.Service{Name: Agent, Args: []string{
		machine.Shared + "/" + string(build) + "/" + Agent, "--config", machine.Shared + "/agent.yaml", "--kubeconfig", machine.Shared + "/agent.kubeconfig",
		"--node-name", c.Node[i].Name,
	}})
}
