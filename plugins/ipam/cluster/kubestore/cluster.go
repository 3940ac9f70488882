// SPDX-License-Identifier: Apache-2.0

package kubestore

import (
	"context"
	"encoding/json"
	"net/netip"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/operator"
)

// networkStatus is where Multus notes the addresses of a pod's networks.
const networkStatus = "k8s.v1.cni.cncf.io/network-status"

// Pods returns all pods, with the addresses that they report.
func (s *Store) Pods(ctx context.Context) ([]operator.Pod, error) {
	pods, err := list[podObject](ctx, s, "/api/v1/pods")
	var out []operator.Pod
	for i := range pods {
		p := &pods[i]
		pod := operator.Pod{Ref: p.Metadata.Namespace + "/" + p.Metadata.Name, Node: p.Spec.NodeName, Ended: p.ended()}
		var texts []string
		if !p.Spec.HostNetwork {
			for _, ip := range p.Status.PodIPs {
				texts = append(texts, ip.IP)
			}
		}
		var networks []struct {
			IPs []string `json:"ips"`
		}
		_ = json.Unmarshal([]byte(p.Metadata.Annotations[networkStatus]), &networks) // a pod without, or with one of its own making
		for _, n := range networks {
			texts = append(texts, n.IPs...)
		}
		seen := map[netip.Addr]bool{}
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil && !seen[a] {
				seen[a] = true
				pod.Addresses = append(pod.Addresses, a)
			}
		}
		out = append(out, pod)
	}
	return out, err
}
