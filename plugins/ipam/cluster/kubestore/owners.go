// SPDX-License-Identifier: Apache-2.0

package kubestore

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const (
	claimGroup = "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/"
	// keepAddresses is how a pod of a StatefulSet asks for the address that the pod before it had.
	keepAddresses = "sluice-cni.io/keep-addresses"
	// Multus reads these two, and a mutating webhook of KubeVirt writes references to IPAMClaims into them.
	networksKey       = "k8s.v1.cni.cncf.io/networks"
	defaultNetworkKey = "v1.multus-cni.io/default-network"
	// KubeVirt marks the pods of a virtual machine with one of them.
	vmLabel      = "vm.kubevirt.io/name"
	vmAnnotation = "kubevirt.io/domain"
)

// podObject is what is read of a pod.
type podObject struct {
	Metadata struct {
		pool.Meta
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		Owners      []struct {
			Kind       string `json:"kind"`
			Name       string `json:"name"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName    string `json:"nodeName"`
		HostNetwork bool   `json:"hostNetwork"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

func (p *podObject) vm() string {
	if name := p.Metadata.Labels[vmLabel]; name != "" {
		return name
	}
	return p.Metadata.Annotations[vmAnnotation]
}

func (p *podObject) ended() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// statefulSet returns the name of the StatefulSet that made the pod, or "".
func (p *podObject) statefulSet() string {
	for _, o := range p.Metadata.Owners {
		if o.Kind == "StatefulSet" && o.Controller {
			return o.Name
		}
	}
	return ""
}

// claimObject is an IPAMClaim.
type claimObject struct {
	Metadata pool.Meta `json:"metadata"`
	Spec     struct {
		Network string `json:"network"`
	} `json:"spec"`
	Status struct {
		IPs []string `json:"ips"`
	} `json:"status"`
}

func claimPath(namespace, name string) string {
	return claimGroup + namespace + "/ipamclaims/" + name
}

// Owner says what the addresses of a pod's interface are kept for, by what the pod and its IPAMClaim say.
func (s *Store) Owner(ctx context.Context, p claims.Pod) (claims.Owner, error) {
	var none claims.Owner
	if p.Namespace == "" || p.Name == "" {
		return none, nil // a container without a pod does not come again
	}
	var o podObject
	if err := s.read(ctx, podPath(p.Namespace, p.Name), &o); err != nil {
		return none, err
	}
	if p.UID != "" && o.Metadata.UID != p.UID {
		return none, fmt.Errorf("pod %s/%s was made again with another UID: %w", p.Namespace, p.Name, claims.ErrUnavailable)
	}
	name := p.Claim
	if name == "" {
		var err error
		if name, err = reference(&o, p.IfName); err != nil {
			return none, fmt.Errorf("pod %s/%s: %w: %w", p.Namespace, p.Name, claims.ErrOwner, err)
		}
	}
	if name != "" {
		return s.claimOwner(ctx, p, name, o.vm())
	}
	keep, _ := strconv.ParseBool(o.Metadata.Annotations[keepAddresses])
	if !keep {
		return none, nil
	}
	if o.statefulSet() == "" {
		return none, fmt.Errorf("pod %s/%s: annotation %s: %w: only pods of a StatefulSet come again under their name", p.Namespace, p.Name, keepAddresses, claims.ErrOwner)
	}
	return claims.Owner{Hold: pool.HoldFor(pool.HeldPod, p.Namespace, p.Name, p.IfName)}, nil
}

// reference returns the IPAMClaim that the pod names for an interface. Multus calls the interfaces without a name net1, net2
// and so on.
func reference(o *podObject, ifName string) (string, error) {
	type element struct {
		Interface string `json:"interface"`
		Claim     string `json:"ipam-claim-reference"`
	}
	for _, key := range []string{networksKey, defaultNetworkKey} {
		text := strings.TrimSpace(o.Metadata.Annotations[key])
		if !strings.HasPrefix(text, "[") { // the short form names networks only
			continue
		}
		var list []element
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return "", fmt.Errorf("annotation %s: %w", key, err)
		}
		for i, e := range list {
			name := e.Interface
			switch {
			case key == defaultNetworkKey:
				name = "eth0"
			case name == "":
				name = "net" + strconv.Itoa(i+1)
			}
			if name == ifName && e.Claim != "" {
				return e.Claim, nil
			}
		}
	}
	return "", nil
}

// claimOwner reads an IPAMClaim of the pod's namespace.
func (s *Store) claimOwner(ctx context.Context, p claims.Pod, name, vm string) (claims.Owner, error) {
	var none claims.Owner
	bad := func(why string) error {
		return fmt.Errorf("ipam-claim-reference %q: %w: %s", name, claims.ErrOwner, why)
	}
	if strings.ContainsAny(name, "/@") || name == "" || url.PathEscape(name) != name {
		return none, bad("not the name of an IPAMClaim in the pod's namespace")
	}
	var c claimObject
	err := s.read(ctx, claimPath(p.Namespace, name), &c)
	switch {
	case apierrors.IsNotFound(err):
		return none, bad("namespace " + p.Namespace + " has no such IPAMClaim")
	case err != nil:
		return none, err
	case c.Spec.Network != p.Network:
		return none, bad(fmt.Sprintf("the IPAMClaim is for the network %q, and this one is %q", c.Spec.Network, p.Network))
	}
	o := claims.Owner{Hold: pool.HoldFor(pool.HeldClaim, p.Namespace, name), Claim: name}
	if vm != "" {
		if strings.ContainsAny(vm, "/@") {
			return none, bad(fmt.Sprintf("%q is not the name of a virtual machine", vm))
		}
		o.Hold = pool.HoldFor(pool.HeldVM, p.Namespace, name, vm)
	}
	for _, text := range c.Status.IPs {
		a, err := address(text)
		if err != nil {
			return none, bad(fmt.Sprintf("its status has %q, which is not an address", text))
		}
		o.IPs = append(o.IPs, a)
	}
	return o, nil
}

// address reads what a status has: "10.0.0.5" or "10.0.0.5/24".
func address(text string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr(), nil
	}
	return netip.ParseAddr(text)
}

// Bind writes the addresses that the pod has into the status of its IPAMClaim, if it does not say so.
func (s *Store) Bind(ctx context.Context, p claims.Pod, o claims.Owner, ips []netip.Prefix) error {
	var texts []string
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	var c claimObject
	path := claimPath(p.Namespace, o.Claim)
	if err := s.read(ctx, path, &c); err != nil {
		return err
	}
	if slices.Equal(c.Status.IPs, texts) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"ips": texts, "ownerPod": map[string]string{"name": p.Name}}})
	if err != nil {
		return err
	}
	_, err = s.do(ctx, s.client.Patch(types.MergePatchType).AbsPath(path+"/status").Body(body))
	return err
}

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// Gone reports whether no pod of the owner comes again: its IPAMClaim is deleted, or the StatefulSet has no such pod any
// more. While a pod of it is there, it is not.
func (s *Store) Gone(ctx context.Context, h pool.Hold) (bool, error) {
	kind, names := h.Kind()
	gone, err := false, error(nil)
	switch kind {
	case pool.HeldPod:
		gone, err = s.podGone(ctx, names[0], names[1])
	case pool.HeldClaim:
		err = s.read(ctx, claimPath(names[0], names[1]), &claimObject{})
		gone = apierrors.IsNotFound(err)
	case pool.HeldVM:
		err = s.read(ctx, claimPath(names[0], names[1]), &claimObject{})
		if gone = apierrors.IsNotFound(err); gone {
			gone, err = s.vmGone(ctx, names[0], names[2])
		}
	}
	switch {
	case apierrors.IsForbidden(err): // nothing is known then
		return false, nil
	case err != nil && !apierrors.IsNotFound(err):
		return false, err
	}
	return gone, nil
}

// podGone reports whether neither the pod is there nor a StatefulSet that makes it again.
func (s *Store) podGone(ctx context.Context, namespace, name string) (bool, error) {
	var o podObject
	err := s.read(ctx, podPath(namespace, name), &o)
	if !apierrors.IsNotFound(err) {
		return false, err
	}
	dash := strings.LastIndexByte(name, '-')
	ordinal, nerr := strconv.Atoi(name[dash+1:])
	if dash <= 0 || nerr != nil {
		return true, nil //nolint:nilerr // no StatefulSet makes such a pod
	}
	var set struct {
		Spec struct {
			Replicas *int `json:"replicas"`
			Ordinals struct {
				Start int `json:"start"`
			} `json:"ordinals"`
		} `json:"spec"`
	}
	err = s.read(ctx, "/apis/apps/v1/namespaces/"+namespace+"/statefulsets/"+name[:dash], &set)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	replicas, first := 1, set.Spec.Ordinals.Start
	if set.Spec.Replicas != nil {
		replicas = *set.Spec.Replicas
	}
	return ordinal < first || ordinal >= first+replicas, nil
}

// vmGone reports whether no pod of a virtual machine is there.
func (s *Store) vmGone(ctx context.Context, namespace, vm string) (bool, error) {
	pods, err := list[podObject](ctx, s, podPath(namespace, ""))
	return err == nil && !slices.ContainsFunc(pods, func(p podObject) bool { return p.vm() == vm && !p.ended() }), err
}
