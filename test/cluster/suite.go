// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/test/cluster/kube"
)

const quickTests = "^TestPrivileged(Service|NodePort|HostPort|Swap)$"

// test makes a cluster, runs the scenarios and takes it down. As "quick" it has two nodes, and runs what a change of Sluice breaks first.
func test(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	o := options(set)
	run := set.String("run", "", "the tests to run, as for go test")
	keep := set.Bool("keep", false, "leave the cluster running")
	if name == "quick" {
		o.Nodes, *run, *cluster = 2, quickTests, "quick"
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	start := time.Now()
	if _, err := kubebin.Build(ctx, kube.Programs()...); err != nil {
		return err
	}
	built := time.Now()
	err := within(ctx, *cluster, *o, *keep, func(*kube.Cluster) error {
		arguments := []string{"test", "-count=1", "-v", "-timeout=30m", "-run", *run, "./test/cluster/scenarios", "-cluster", *cluster}
		cmd := exec.CommandContext(ctx, "go", arguments...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	})
	fmt.Printf("programs of the cluster %.0f s, cluster and tests %.0f s\n", built.Sub(start).Seconds(), time.Since(built).Seconds())
	return err
}

// within makes a cluster for f and takes it down, also when f fails.
func within(ctx context.Context, name string, o kube.Options, keep bool, f func(*kube.Cluster) error) (err error) {
	c, err := makeCluster(ctx, name, o)
	if err != nil {
		return err
	}
	defer func() {
		if !keep {
			err = errors.Join(err, kube.Down(name))
		}
	}()
	return f(c)
}
