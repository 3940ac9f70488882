// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/test/cluster/kube"
)

// churn has pods with a hostPort come and go, one after the other on each node, until it is stopped.
type churn struct {
	*suite
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu   sync.Mutex
	came int
	errs []error
}

const churnPort = 25000

func startChurn(s *suite) *churn {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	c := &churn{suite: s, cancel: cancel}
	for i := range s.Node {
		c.all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// The stop does not interrupt a pod: it comes and goes as all before it.
				err := c.comeAndGo(context.WithoutCancel(ctx), i, n)
				c.mu.Lock()
				c.came++
				c.errs = append(c.errs, err)
				c.mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	s.t.Cleanup(func() { c.cancel(); c.all.Wait() })
	return c
}

// comeAndGo is the life of one pod.
func (c *churn) comeAndGo(ctx context.Context, node, n int) error {
	name := fmt.Sprintf("churn%d-%s", n, c.Node[node].Name)
	pods := c.client.CoreV1().Pods(c.ns)
	spec := podSpec(name, c.Node[node].Name, nil, corev1.ContainerPort{ContainerPort: httpPort, HostPort: churnPort})
	if _, err := pods.Create(ctx, spec, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := c.readyPod(ctx, name, 0); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	said, err := get(client(c.Outside), fmt.Sprintf("http://%s:%d/hostname", kube.NodeAddrs(node)[0], churnPort))
	if err != nil || said != name {
		return fmt.Errorf("the hostPort of %s answers %q: %w", name, said, errors.Join(err, ctx.Err()))
	}
	return c.deletePods(ctx, name)
}

// unharmed stops the pods and fails the test if one did not come or go, or if one ADD failed: kubelet makes an Event of each.
func (c *churn) unharmed(atLeast int) {
	c.t.Helper()
	c.cancel()
	c.all.Wait()
	if err := errors.Join(c.errs...); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("%d pods came and went", c.came)
	if c.came < atLeast {
		c.t.Errorf("%d pods came and went, want at least %d", c.came, atLeast)
	}
	time.Sleep(netlab.Patient(time.Second)) // an Event comes after what it is about
	for _, e := range c.failedAdds(c.t.Context()) {
		c.t.Errorf("an ADD failed: %s: %s", e.InvolvedObject.Name, e.Message)
	}
}

// failedAdds are kubelet's Events of pods that got no network.
func (s *suite) failedAdds(ctx context.Context) []corev1.Event {
	s.t.Helper()
	events, err := s.client.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreatePodSandBox"})
	s.must(err)
	return events.Items
}
