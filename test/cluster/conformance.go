// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// Kubernetes' tests of the network, but those that need a cluster alone, and those of what the lab does not have: another component,
// the internet, a kernel module.
const (
	networkTests = `\[sig-network\]`
	notHere      = `\[(Serial|Disruptive|Flaky)\]|\[Feature:(NetworkPolicy|LoadBalancer|Ingress|Networking|PerformanceDNS|SCTP|KubeProxyNFAcct|OffByDefault)`
)

// conformance runs Kubernetes' own tests in a cluster of each kind, and compares what Sluice's plugins pass with what upstream's do.
func conformance(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	o := options(set)
	focus := set.String("focus", networkTests, "the tests, a regular expression")
	skip := set.String("skip", notHere, "the tests to leave out, a regular expression")
	procs := set.Int("procs", 4, "how many tests at a time")
	proxies := set.String("proxies", strings.Join(kube.Proxies, ","), "kube-proxy's modes")
	with := set.String("with", "sluice,reference", "whose plugins")
	if err := set.Parse(args); err != nil {
		return err
	}
	if _, err := kubebin.Build(ctx, append(kube.Programs(), kubebin.CoreDNS, kubebin.E2E, kubebin.Ginkgo)...); err != nil {
		return err
	}
	all := map[string]kube.Results{}
	for proxy := range strings.SplitSeq(*proxies, ",") {
		for plugins := range strings.SplitSeq(*with, ",") {
			of := *o
			of.Proxy, of.Plugins = proxy, kube.Plugins(plugins)
			kind := plugins + " " + proxy
			err := within(ctx, *cluster, of, false, func(c *kube.Cluster) (err error) {
				all[kind], err = runE2E(ctx, c, kind, *focus, *skip, *procs)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
	}
	return judge(all)
}

// runE2E runs the tests in the control machine of a cluster.
func runE2E(ctx context.Context, c *kube.Cluster, kind, focus, skip string, procs int) (kube.Results, error) {
	if err := c.StartDNS(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	line := []string{
		"env", "PATH=" + machinePath, "HOME=/tmp", kubebin.Ginkgo, fmt.Sprint("--procs=", procs), "--focus=" + focus, "--skip=" + skip, "--timeout=1h",
		"--no-color", machine.Shared + "/bin/" + kubebin.E2E, "--", "--kubeconfig=" + kubeconfigIn(c.Control), "--provider=skeleton",
		"--report-dir=" + machine.Shared + "/report", "--dump-logs-on-failure=false", "--num-nodes=" + fmt.Sprint(c.Nodes),
	}
	cmd, err := c.Control.Command(ctx, line...)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(os.TempDir(), "sluice-conformance-"+strings.ReplaceAll(kind, " ", "-")+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	failed := cmd.Run() // a failed test is in the report
	results, err := kube.ReadJUnit(filepath.Join(c.Control.Dir, "report"))
	if err != nil || len(results) == 0 {
		return nil, errors.Join(fmt.Errorf("no report, see %s", log.Name()), failed, err)
	}
	passed := results.Count(kube.Passed)
	fmt.Printf("%s: %d passed, %d failed, %.0f s, log in %s\n", kind, passed, results.Count(kube.Failed), time.Since(start).Seconds(), log.Name())
	return results, nil
}

// judge prints the tests that do not pass everywhere, and fails if Sluice fails one that upstream passes, or that has no upstream beside it.
func judge(all map[string]kube.Results) error {
	names := map[string]bool{}
	for _, r := range all {
		for name, result := range r {
			if result == kube.Failed {
				names[name] = true
			}
		}
	}
	var worse []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Println(name)
		for _, kind := range slices.Sorted(maps.Keys(all)) {
			fmt.Printf("  %-20s %s\n", kind, all[kind][name])
			plugins, proxy, _ := strings.Cut(kind, " ")
			beside := all[string(kube.Reference)+" "+proxy]
			if plugins == string(kube.Sluice) && all[kind][name] == kube.Failed && beside[name] != kube.Failed {
				worse = append(worse, kind+": "+name)
			}
		}
	}
	if len(worse) > 0 {
		return fmt.Errorf("fails with Sluice and not with upstream:\n%s", strings.Join(worse, "\n"))
	}
	return nil
}
