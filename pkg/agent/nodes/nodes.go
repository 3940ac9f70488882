// SPDX-License-Identifier: Apache-2.0

// Package nodes follows the Node objects of the cluster, trimmed to what the agent needs of them.
//
// It keeps what it knows while the API server is away, and comes back by itself. pkg/agent asks it for the node's own object and those of
// the others. It changes nothing, on the node or in the cluster.
package nodes

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/routes"
)

// Watcher has the nodes. Its methods are safe for concurrent use.
type Watcher struct {
	self     string
	informer cache.SharedIndexInformer
	changed  []chan struct{} // see Changed
	failing  atomic.Pointer[string]
}

// View is what the Watcher knows at one time.
type View struct {
	Self   routes.Node
	UID    types.UID // of Self; empty: the cluster has no such node
	Others []routes.Node
	// External are the ExternalIPs of all nodes.
	External []netip.Addr
	// Bad are podCIDRs of Self that are none.
	Bad []string
}

// New returns a Watcher for the node of that name. Run starts it.
func New(client *kube.Client, self string) (*Watcher, error) {
	w := &Watcher{self: self}
	lw := &cache.ListWatch{
		// Each relist asks for pages of the newest version. A list from the API server's cache ("0") comes in one piece.
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			list, err := client.ListNodes(ctx, trim)
			if err == nil {
				w.failing.Store(nil)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := client.WatchNodes(ctx, o)
			if err == nil {
				w.failing.Store(nil)
			}
			return events, err
		},
	}
	w.informer = cache.NewSharedIndexInformer(lw, &corev1.Node{}, 0, nil)
	if err := w.informer.SetTransform(transform); err != nil {
		return nil, err
	}
	if err := w.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		text := err.Error()
		w.failing.Store(&text)
		w.notify()
	}); err != nil {
		return nil, err
	}
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.notify() },
		UpdateFunc: func(old, updated any) {
			if !same(old.(*corev1.Node), updated.(*corev1.Node)) {
				w.notify()
			}
		},
		DeleteFunc: func(any) { w.notify() },
	})
	return w, err
}

// Run follows the nodes until ctx ends. client-go lists again after errors: after 0.8 to 30 s, with jitter.
func (w *Watcher) Run(ctx context.Context) { w.informer.RunWithContext(ctx) }

// Changed returns a channel that gets a value after nodes have changed. Several changes may be one value. It is for before Run, and
// each caller has a channel of its own.
func (w *Watcher) Changed() <-chan struct{} {
	c := make(chan struct{}, 1)
	w.changed = append(w.changed, c)
	return c
}

// Synced says that the API server has answered once. What View returns is from its last answer.
func (w *Watcher) Synced() bool { return w.informer.HasSynced() }

// Failing returns the last error of the API server since its last answer, as far as that is known; empty if there is none.
func (w *Watcher) Failing() string {
	if text := w.failing.Load(); text != nil {
		return *text
	}
	return ""
}

func (w *Watcher) notify() {
	for _, c := range w.changed {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// View returns what is known now, the other nodes in the order of their names.
func (w *Watcher) View() View {
	var v View
	for _, obj := range w.informer.GetStore().List() {
		node := obj.(*corev1.Node)
		n, bad := convert(node)
		v.External = append(v.External, addrs(node, corev1.NodeExternalIP)...)
		if node.Name == w.self {
			v.Self, v.UID, v.Bad = n, node.UID, bad
			continue
		}
		v.Others = append(v.Others, n)
	}
	slices.SortFunc(v.Others, func(a, b routes.Node) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// convert reads a trimmed Node. bad are podCIDRs that are no networks; addresses that are none are left out.
func convert(n *corev1.Node) (out routes.Node, bad []string) {
	out = routes.Node{Name: n.Name, Annotations: n.Annotations, Created: n.CreationTimestamp.Time}
	for _, s := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			bad = append(bad, s)
			continue
		}
		out.PodCIDRs = append(out.PodCIDRs, p)
	}
	out.InternalIPs = addrs(n, corev1.NodeInternalIP)
	return out, bad
}

// addrs returns the addresses of a type.
func addrs(n *corev1.Node, kind corev1.NodeAddressType) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" && a.Type == kind {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// transform is the informer's: what a watch brings is trimmed before it is kept.
func transform(obj any) (any, error) {
	if n, ok := obj.(*corev1.Node); ok {
		trim(n)
	}
	return obj, nil
}

// annotationPrefixes are those of the annotations that routes reads.
var annotationPrefixes = []string{"sluice-cni.io/", "flannel.alpha.coreos.com/"}

// trim drops all that the agent does not need: labels, images, conditions, managed fields.
func trim(n *corev1.Node) {
	meta, addresses := n.ObjectMeta, n.Status.Addresses
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	*n = corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, CreationTimestamp: meta.CreationTimestamp},
		Spec:       corev1.NodeSpec{PodCIDRs: cidrs},
	}
	for k, v := range meta.Annotations {
		if slices.ContainsFunc(annotationPrefixes, func(p string) bool { return strings.HasPrefix(k, p) }) {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[k] = v
		}
	}
	for _, a := range addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			n.Status.Addresses = append(n.Status.Addresses, a)
		}
	}
}

func same(a, b *corev1.Node) bool {
	return a.UID == b.UID && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) && slices.Equal(a.Status.Addresses, b.Status.Addresses) &&
		maps.Equal(a.Annotations, b.Annotations)
}

// Wanting returns those annotations that the node does not have as wanted. An empty value is for one that must not be there.
func Wanting(self routes.Node, wanted map[string]string) map[string]string {
	missing := map[string]string{}
	for k, v := range wanted {
		if self.Annotations[k] != v {
			missing[k] = v
		}
	}
	return missing
}
