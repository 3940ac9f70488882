// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	convert "github.com/sluice-cni/sluice/pkg/networkpolicy/kube"
)

// resources are those that policies are about.
var resources = [...]kube.Resource{kube.Namespaces, kube.NetworkPolicies, kube.Pods}

// objects is what has to be known of objects beside what the engine keeps.
type objects struct {
	complete map[kube.Resource]bool
	names    map[string]string // of the pods of this node, by UID
	bad      map[string]string // policies of which something cannot be used, with what
	mirrors  map[string]string // names of mirror pods, by the UID that the runtime knows
	static   map[string]string // the reverse
}

func newObjects() objects {
	return objects{map[kube.Resource]bool{}, map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}}
}

// listed says that all three lists have been read once. Before that nothing is applied: a policy without the pods that it is about, or
// pods without the policy, mean something else.
func (o *objects) listed() bool { return len(o.complete) == len(resources) }

// seen is what a list has.
type seen struct {
	pods  map[uint64]struct{}
	names map[string]struct{} // of other objects
}

func newSeen() *seen { return &seen{map[uint64]struct{}{}, map[string]struct{}{}} }

func (s *seen) note(name string) {
	if s != nil {
		s.names[name] = struct{}{}
	}
}

// change converts an object at once, so that the whole of it is not kept, and returns what to do with it. in is the list that it is in, if any.
func (r *run) change(obj runtime.Object, deleted bool, in *seen) func() {
	switch o := obj.(type) {
	case *corev1.Pod:
		p, uid, name := convert.Pod(o), string(o.UID), o.Namespace+"/"+o.Name
		return func() { r.pod(p, uid, name, deleted, in) }
	case *corev1.Namespace:
		n := convert.Namespace(o)
		return func() {
			if deleted {
				r.engine.DeleteNamespace(n.Name)
				return
			}
			r.engine.UpsertNamespace(n)
			in.note(n.Name)
		}
	case *networkingv1.NetworkPolicy:
		p, err := convert.NetworkPolicy(o)
		name := p.Namespace + "/" + p.Name
		return func() {
			if delete(r.bad, name); deleted {
				r.engine.DeletePolicy(p.Namespace, p.Name)
				return
			}
			if err != nil {
				r.bad[name] = err.Error()
			}
			r.engine.UpsertPolicy(p)
			in.note(name)
		}
	}
	return func() {}
}

// pod takes a pod. uid is the object's: that of p is another one if the pod is static.
func (r *run) pod(p networkpolicy.Pod, uid, name string, deleted bool, in *seen) {
	if old, ok := r.static[name]; ok && (old != p.UID || deleted) { // its manifest, or what makes it a mirror pod, was changed
		r.forget(old)
		delete(r.static, name)
		delete(r.mirrors, old)
	}
	if p.UID != uid {
		if holder, ok := r.mirrors[p.UID]; ok && holder != name {
			p.UID = uid // it says that it is another static pod, which came before
		} else if r.forget(uid); !deleted {
			r.mirrors[p.UID], r.static[name] = name, p.UID
		}
	}
	if deleted {
		r.forget(p.UID)
		return
	}
	r.engine.UpsertPod(p)
	if p.Node == r.Node && !p.HostNetwork && !p.Terminal {
		r.names[p.UID] = name
	} else {
		delete(r.names, p.UID)
	}
	if in != nil {
		in.pods[networkpolicy.PodKey(p.UID)] = struct{}{}
	}
}

func (r *run) forget(uid string) {
	r.engine.DeletePod(uid)
	delete(r.names, uid)
}

// retain forgets what a list does not have: it went while nobody watched.
func (r *run) retain(resource kube.Resource, in *seen) {
	named := func(name string) bool { _, ok := in.names[name]; return ok }
	switch resource {
	case kube.Pods:
		listed := func(key uint64) bool { _, ok := in.pods[key]; return ok }
		r.engine.RetainPods(listed)
		for uid := range r.names {
			if !listed(networkpolicy.PodKey(uid)) {
				delete(r.names, uid)
			}
		}
		for uid, name := range r.mirrors {
			if !listed(networkpolicy.PodKey(uid)) {
				delete(r.mirrors, uid)
				delete(r.static, name)
			}
		}
	case kube.Namespaces:
		r.engine.RetainNamespaces(named)
	case kube.NetworkPolicies:
		r.engine.RetainPolicies(func(namespace, name string) bool { return named(namespace + "/" + name) })
		for name := range r.bad {
			if !named(name) {
				delete(r.bad, name)
			}
		}
	}
	r.complete[resource] = true
}
