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

const quickTests = "^TestPrivileged(Service|EndpointGoes|NodePort|HostPort|Swap)$"

// test makes a cluster, runs the scenarios and takes it down. As "quick" it has two nodes, and runs what a change of Sluice breaks first. What
// follows the flags are flags of the scenarios.
func test(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	o := options(set)
	run := set.String("run", "", "the tests to run, as for go test")
	limit := set.Duration("timeout", 40*time.Minute, "how long the tests may take")
	keep := set.Bool("keep", false, "leave the cluster running")
	if name == "quick" {
		o.Nodes, *run, *cluster = 2, quickTests, "quick"
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	if device := deviceOf(o.Agent); device != "" && !hasDevice(ctx, device) {
		fmt.Printf("skipped: -agent %s: this kernel has no devices of the type %s\n", o.Agent, device)
		return nil
	}
	start := time.Now()
	if _, err := kubebin.Build(ctx, kube.Programs()...); err != nil {
		return err
	}
	built := time.Now()
	err := within(ctx, *cluster, *o, *keep, func(*kube.Cluster) error {
		arguments := []string{"test", "-count=1", "-v", fmt.Sprint("-timeout=", *limit), "-run", *run, "./test/cluster/scenarios", "-cluster", *cluster}
		cmd := exec.CommandContext(ctx, "go", append(arguments, set.Args()...)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	})
	fmt.Printf("programs of the cluster %.0f s, cluster and tests %.0f s\n", built.Sub(start).Seconds(), time.Since(built).Seconds())
	return err
}

// deviceOf is the type of device that a mode of the agent needs.
func deviceOf(mode string) string {
	switch mode {
	case "vxlan", "wireguard":
		return mode
	}
	return ""
}

// hasDevice asks the kernel for one, in a namespace that ends with the question.
func hasDevice(ctx context.Context, device string) bool {
	line := []string{"--net", "ip", "link", "add", "probe", "type", device}
	if device == "vxlan" {
		line = append(line, "id", "1", "dstport", "8472")
	}
	return exec.CommandContext(ctx, "unshare", line...).Run() == nil
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
