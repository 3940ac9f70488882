// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/test/cluster/kube"
)

// pods measures how long many pods take to come and go, with each kind of plugins and each chain in turn.
func pods(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	o := options(set)
	count := set.Int("count", 150, "how many pods")
	rounds := set.Int("rounds", 2, "how often, each time with a new cluster")
	if err := set.Parse(args); err != nil {
		return err
	}
	var lines []string
	for range *rounds {
		for _, chain := range []string{kube.DefaultChain, kube.FlannelChain} {
			for _, plugins := range kube.AllPlugins {
				with := *o
				with.Plugins, with.Chain = plugins, chain
				if err := within(ctx, *cluster, with, false, func(c *kube.Cluster) error {
					line, err := measurePods(ctx, c, *count)
					lines = append(lines, line)
					return err
				}); err != nil {
					return err
				}
			}
		}
	}
	fmt.Printf("%d pods on %d nodes, in seconds; ADD by containerd's histogram\n%-22s %7s %7s %7s %7s %7s %7s %7s\n%s\n", *count, o.Nodes,
		"plugins", "ready", "p50", "p99", "gone", "ADD", "p50", "p99", strings.Join(lines, "\n"))
	return nil
}

func measurePods(ctx context.Context, c *kube.Cluster, count int) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	// The first pods also load images and programs.
	if _, err := comeAndGo(ctx, client, "warm", len(c.Node)*2); err != nil {
		return "", err
	}
	before, err := c.ADDTimes(ctx)
	if err != nil {
		return "", err
	}
	times, err := comeAndGo(ctx, client, "many", count)
	if err != nil {
		return "", err
	}
	after, err := c.ADDTimes(ctx)
	if err != nil {
		return "", err
	}
	add := after.Since(before)
	if int(add.Count) < count {
		return "", fmt.Errorf("the runtimes tell of %.0f ADDs, want %d", add.Count, count)
	}
	for i := range c.Node {
		if c.Plugins != kube.Sluice {
			break
		}
		if _, err := c.Tool(ctx, i, "doctor"); err != nil { // it says what it found
			return "", fmt.Errorf("after the pods are gone: %w", err)
		}
	}
	kind := string(c.Plugins) + " " + c.Main
	if c.Chain != kube.DefaultChain {
		kind = string(c.Plugins) + ", chain " + c.Chain
	}
	line := fmt.Sprintf("%-22s", kind)
	for _, d := range []time.Duration{times.up, times.each(50), times.each(99), times.down, add.Mean(), add.Quantile(0.5), add.Quantile(0.99)} {
		line += fmt.Sprintf(" %7.3f", d.Seconds())
	}
	fmt.Println(line)
	return line, nil
}

type podTimes struct {
	up, down time.Duration
	ready    []time.Duration // from the Deployment's creation until each pod was ready, in this order
}

func (p podTimes) each(percent int) time.Duration { return p.ready[(len(p.ready)-1)*percent/100] }

const measured = "default"

// comeAndGo makes a Deployment and deletes it when all its pods are ready.
func comeAndGo(ctx context.Context, client kubernetes.Interface, name string, count int) (t podTimes, err error) {
	replicas := int32(count)
	// With 0 seconds the API server would forget a pod before its node has ended it, and its DEL would not be in the figure.
	second := int64(1)
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &second,
					Containers:                    []corev1.Container{{Name: "c", Image: kube.PauseImage}},
				},
			},
		},
	}
	start := time.Now()
	if _, err := client.AppsV1().Deployments(measured).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return t, err
	}
	// By this clock: the API's has seconds only.
	seen := map[string]time.Duration{}
	if err := until(ctx, client, name, func(pods []corev1.Pod) bool {
		for _, p := range pods {
			if _, ok := seen[p.Name]; !ok && ready(p) {
				seen[p.Name] = time.Since(start)
			}
		}
		return len(seen) == count
	}); err != nil {
		return t, err
	}
	t.up, t.ready = time.Since(start), slices.Sorted(maps.Values(seen))
	start = time.Now()
	if err := client.AppsV1().Deployments(measured).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return t, err
	}
	err = until(ctx, client, name, func(pods []corev1.Pod) bool { return len(pods) == 0 })
	t.down = time.Since(start)
	return t, err
}

func until(ctx context.Context, client kubernetes.Interface, name string, done func([]corev1.Pod) bool) error {
	return kube.Poll(ctx, 5*time.Minute, name+" is as wanted", func(ctx context.Context) error {
		all, err := client.CoreV1().Pods(measured).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil || done(all.Items) {
			return err
		}
		return fmt.Errorf("there are %d pods, %s", len(all.Items), strings.Join(phases(all.Items), " "))
	})
}

func phases(pods []corev1.Pod) (all []string) {
	counts := map[corev1.PodPhase]int{}
	for _, p := range pods {
		counts[p.Status.Phase]++
	}
	for phase, n := range counts {
		all = append(all, fmt.Sprint(n, " ", phase))
	}
	return all
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}
