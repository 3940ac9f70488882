// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// shell gives a shell in a machine. Without one it is the control machine, with kubectl.
func shell(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	if err := set.Parse(args); err != nil {
		return err
	}
	where := set.Args()
	if len(where) == 0 {
		where = []string{"control"}
	}
	return enter(ctx, *cluster, where[0], []string{"bash", "-i"})
}

func runIn(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() < 2 {
		return errors.New("usage: cluster run [-name CLUSTER] MACHINE COMMAND...")
	}
	return enter(ctx, *cluster, set.Arg(0), set.Args()[1:])
}

func kubectl(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	if err := set.Parse(args); err != nil {
		return err
	}
	return enter(ctx, *cluster, "control", append([]string{kubebin.Kubectl}, set.Args()...))
}

// enter runs a command in a machine, whose PATH has kubectl and Sluice's tool.
func enter(ctx context.Context, cluster, where string, args []string) error {
	c, err := kube.Open(cluster)
	if err != nil {
		return err
	}
	m, err := c.Machine(where)
	if err != nil {
		return err
	}
	// An interrupt is the command's to handle, not this program's.
	cmd, err := m.Command(context.WithoutCancel(ctx), append([]string{"env", "PATH=" + machinePath, "KUBECONFIG=" + kubeconfigIn(m), "PS1=" + where + "# "}, args...)...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s ended with status %d", filepath.Base(args[0]), exit.ExitCode())
	}
	return err
}

const machinePath = machine.Shared + "/bin:" + machine.Shared + "/sluice:/usr/sbin:/usr/bin:/sbin:/bin"

func kubeconfigIn(m *machine.Machine) string {
	if m.Name == "control" {
		return machine.Shared + "/pki/admin.kubeconfig"
	}
	return machine.Shared + "/admin.kubeconfig"
}
