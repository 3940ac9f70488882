// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/agent/conflist"
	"github.com/sluice-cni/sluice/pkg/agent/garbage"
	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/routes"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

const (
	// unloadTime bounds a run of "sluice unload".
	unloadTime = time.Minute
	// podsGone is how often a removal that waits looks for pods that are gone.
	podsGone = 2 * time.Second
	// sandboxesGone is how long such a removal lets the runtime remove the sandboxes of pods that are gone.
	sandboxesGone = 2 * time.Minute
)

// ErrPodsLeft says that Remove left the plugins, because attached pods need them for their DEL.
var ErrPodsLeft = errors.New("attached pods need the plugins for their DEL")

// RemoveOptions are those of Remove.
type RemoveOptions struct {
	// Wait has it go on until no pod is attached any more.
	Wait bool
	// Force has it not wait for pods: it removes the plugins while some are attached, and programs that hold a denylist.
	Force bool
}

// Remove takes off the node what Run has put there. A runtime makes a DEL only while it has a network, so the order depends on whether
// another one is there.
//
//   - With another network, ours goes at once, with routes, devices and exemptions. The runtime then asks the other network's plugins for the
//     DEL of our pods, and Remove does ours.
//   - Without one, ours takes no new pods, and stays for the DEL of those that it has. All of it goes when they are gone.
//
// The datapath and the plugins go last, when no pod is attached. Until then the error wraps ErrPodsLeft, or Remove waits. Kube may be nil:
// the node's annotations stay then.
func Remove(ctx context.Context, o Options, how RemoveOptions) (err error) {
	own := filepath.Join(o.Config.Paths.On(ownState), "remove")
	r := &removal{Options: o, how: how, attached: map[string]bool{}, path: filepath.Join(o.Config.Paths.Conf(), o.Config.Network.File)}
	// The runtime's directory may have another suite's plugins by now.
	r.plugins = sync.OnceValues(func() ([]string, error) {
		_, err := install.Install(ctx, own, install.Options{}, install.Sources(o.Programs, install.Plugins())...)
		return []string{own, o.Config.Paths.BinDir}, err
	})
	defer func() { err = errors.Join(err, os.RemoveAll(own)) }()
	for said := 0; ; sleep(ctx, podsGone) {
		left, err := r.once(ctx)
		if left == 0 || how.Force || !how.Wait || ctx.Err() != nil {
			return err
		}
		if left != said {
			o.Log.Info("waiting for attached pods to go", log.Int("pods", left), log.Error(err))
			said = left
		}
	}
}

// removal is one Remove.
type removal struct {
	Options
	how      RemoveOptions
	path     string                   // of the network's configuration
	plugins  func() ([]string, error) // the directories with this build's plugins
	unrouted bool                     // removeRoutes has done all

	attached map[string]bool // pods that were, by container ID
	last     time.Time       // when the last of them was
}

// once does what can be done now, and returns how many pods are attached.
func (r *removal) once(ctx context.Context) (left int, err error) {
	replaced, err := conflist.Another(filepath.Dir(r.path), r.path)
	if err != nil && !r.how.Force {
		return 0, err
	}
	goes := replaced || r.how.Force
	if !goes { // first: what is counted below must not grow
		if err := r.closeNetwork(); err != nil {
			return 0, err
		}
	}
	living, err := r.sweep(ctx)
	if err != nil && !r.how.Force && len(living) == 0 {
		return 0, fmt.Errorf("%w; --force goes on", err) // nobody knows what is left
	}
	errs := []error{err}
	if n := r.unfinished(ctx, living); n > 0 && !goes && r.how.Wait {
		return n, fmt.Errorf("the runtime has %d sandboxes of pods that are gone", n)
	}
	if len(living) == 0 || goes {
		if err := file.Discard(r.path); err != nil {
			return len(living), err // pods would start on a node without routes
		}
		errs = append(errs, r.removeRoutes(ctx))
	}
	if len(living) > 0 && !r.how.Force {
		errs = append(errs, fmt.Errorf("%d attachments, the first is %s: %w; drain the node, or use --force", len(living), living[0], ErrPodsLeft))
		return len(living), errors.Join(errs...)
	}
	return len(living), errors.Join(append(errs, r.removePrograms(ctx, len(living)))...)
}

// unfinished returns how many pods that were attached the runtime still has a sandbox of, if no pod is attached any more. It makes another DEL
// when it removes one, and cannot without a network. Kubelet has it do so within a minute; nobody waits much longer.
func (r *removal) unfinished(ctx context.Context, living []attachments.ID) (n int) {
	for _, id := range living {
		r.attached[id.ContainerID], r.last = true, time.Now()
	}
	if len(living) > 0 || len(r.attached) == 0 || time.Since(r.last) > sandboxesGone {
		return 0
	}
	sandboxes, err := garbage.CRI(r.Config.RuntimeEndpoint, r.Config.Paths.On)(ctx)
	for id := range sandboxes {
		if err == nil && r.attached[id] {
			n++
		}
	}
	return n
}

// closeNetwork has the network take no new pods.
func (r *removal) closeNetwork() error {
	content, err := file.Read(r.path)
	if err != nil {
		return err
	}
	text, ok, err := conflist.Closed(content, r.Config.Network.Name)
	if !ok || err != nil {
		return err
	}
	changed, err := file.Update(r.path, text, 0o644)
	if changed {
		r.Log.Info("network closed: it takes no new pods", log.String(log.KeyPath, r.path))
	}
	return err
}

// sweep does the DEL of the pods that are gone, and returns the attachments of the others.
func (r *removal) sweep(ctx context.Context) ([]attachments.ID, error) {
	c := r.Config
	gc, err := conflist.ForGC(c.Network.Name)
	if err != nil {
		return nil, err
	}
	l := &garbage.Leaving{
		Network: c.Network.Name, CacheDir: c.Paths.On(cniState), Plugins: r.plugins,
		Records: attachments.Open(c.Paths.On(attachments.DefaultDir)), Sandboxes: garbage.CRI(c.RuntimeEndpoint, c.Paths.On), GC: gc, Log: r.Log,
	}
	return l.Sweep(ctx)
}

// removeRoutes takes off what makes this node one of the network's: routes and devices, exemptions, annotations.
func (r *removal) removeRoutes(ctx context.Context) error {
	if r.unrouted {
		return nil
	}
	router, err := newRouter(r.Options)
	if err == nil {
		err = router.Remove(ctx)
	}
	err = errors.Join(err, newExempt(r.Options).Remove(ctx), file.Discard(r.Config.Paths.On(nodeports.TunnelsFile)), r.removeAnnotations(ctx))
	r.unrouted = err == nil
	r.Log.Info("network, routes and devices removed", log.String(log.KeyPath, r.path))
	return err
}

func (r *removal) removeAnnotations(ctx context.Context) error {
	if r.Kube == nil {
		return nil
	}
	client, err := kube.New(r.Kube)
	if err != nil {
		return err
	}
	has, err := client.Annotations(ctx, r.Node)
	if set := routes.SetBySluice(has); err == nil && len(set) > 0 {
		err = client.Annotate(ctx, r.Node, set)
	}
	if err != nil {
		return fmt.Errorf("annotations of node %s: %w", r.Node, err)
	}
	return nil
}

func (r *removal) removePrograms(ctx context.Context, pods int) error {
	c := r.Config
	var errs []error
	if access := newAccess(r.Options, nil); access != nil && pods == 0 {
		errs = append(errs, access.Remove())
	}
	if pods == 0 {
		errs = append(errs, unload(ctx, r.Programs, r.how.Force))
	}
	removed, err := install.Remove(ctx, c.Paths.Bin(), install.Options{RuntimeDir: c.Paths.BinDir})
	r.Log.Info("plugins removed", log.Any("names", removed))
	return errors.Join(append(errs, err)...)
}

// unload takes the programs out of the kernel, if there are some.
func unload(ctx context.Context, programs string, force bool) error {
	args := []string{"unload"}
	if force {
		args = append(args, "--force")
	}
	ctx, cancel := context.WithTimeout(ctx, unloadTime)
	defer cancel()
	tool := filepath.Join(programs, "sluice")
	if out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
