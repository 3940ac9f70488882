// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"net/netip"
)

// Pod is the pod of a call.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	IfName    string `json:"ifname"`
	Network   string `json:"network"`         // name of the CNI network
	Claim     string `json:"claim,omitempty"` // the IPAMClaim that the call names, or empty: the pod may name one
}

// Owner is what the addresses of an interface are kept for. The zero value: they are not kept.
type Owner struct {
	Hold  string       `json:"hold,omitempty"`  // of pool.HoldFor
	Claim string       `json:"claim,omitempty"` // its IPAMClaim, or empty
	IPs   []netip.Addr `json:"ips,omitempty"`   // that its IPAMClaim says it has. The pool decides.
}

// ErrOwner means that a pod asks for what cannot be kept for it.
var ErrOwner = errors.New("no address can be kept")

// Owners knows what addresses are kept for. Only the store of Kubernetes does.
type Owners interface {
	// Owner reads the pod and its IPAMClaim.
	Owner(ctx context.Context, p Pod) (Owner, error)
	// Bind notes in the IPAMClaim what the pod has.
	Bind(ctx context.Context, p Pod, o Owner, ips []netip.Prefix) error
}
