// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"strings"
	"testing"
)

// lists are what others write into a node's configuration directory.
var lists = map[string]string{
	// kindnetd of kind
	"kindnet": `{ "cniVersion": "0.3.1", "name": "kindnet", "plugins": [
  { "type": "ptp", "ipMasq": false, "mtu": 1400, "ipam": { "type": "host-local", "dataDir": "/run/cni-ipam-state",
    "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }], "ranges": [[{ "subnet": "10.244.0.0/24" }], [{ "subnet": "fd00:10:244::/64" }]] } },
  { "type": "portmap", "capabilities": { "portMappings": true } } ] }`,
	// flanneld of k3s
	"flannel": `{ "name": "cbr0", "cniVersion": "1.0.0", "plugins": [
  { "type": "flannel", "delegate": { "hairpinMode": true, "forceAddress": true, "isDefaultGateway": true } },
  { "type": "portmap", "capabilities": { "portMappings": true } },
  { "type": "bandwidth", "capabilities": { "bandwidth": true } } ] }`,
	// script/setup/install-cni of containerd
	"containerd": `{ "cniVersion": "1.0.0", "name": "containerd-net", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true,
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "2001:4860:4860::/64" }]],
      "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] } },
  { "type": "portmap", "capabilities": { "portMappings": true } } ] }`,
	// contrib/cni of CRI-O
	"crio": `{ "cniVersion": "1.0.0", "name": "crio", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
    "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
      "ranges": [[{ "subnet": "10.85.0.0/16" }], [{ "subnet": "1100:200::/24" }]] } },
  { "type": "portmap", "capabilities": { "portMappings": true } } ] }`,
	// nerdctl network create
	"nerdctl": `{ "cniVersion": "1.0.0", "name": "bridge", "nerdctlID": "17f29b073143d8cd97b5bbe492bdeffec1c5fee55cc1fe2112c8b9335f8b6121", "nerdctlLabels": {},
  "plugins": [
  { "type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
    "ipam": { "ranges": [[{ "gateway": "10.4.0.1", "subnet": "10.4.0.0/24" }], [{ "gateway": "fd00:4::1", "subnet": "fd00:4::/64" }]],
      "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }], "type": "host-local" } },
  { "type": "portmap", "capabilities": { "portMappings": true } },
  { "type": "firewall", "ingressPolicy": "same-bridge" },
  { "type": "tuning" } ] }`,
	// all that containerd can fill in
	"everything": `{ "cniVersion": "1.0.0", "name": "everything", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
    "capabilities": { "dns": true, "mac": true, "ips": true, "cgroupPath": true, "io.kubernetes.cri.pod-annotations": true },
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.244.0.0/24" }], [{ "subnet": "fd00:10:244::/64" }]],
      "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] } },
  { "type": "portmap", "snat": true, "capabilities": { "portMappings": true, "io.kubernetes.cri.pod-annotations": true } },
  { "type": "firewall", "capabilities": { "cgroupPath": true } },
  { "type": "tuning", "sysctl": { "net.core.somaxconn": "500" }, "capabilities": { "mac": true } },
  { "type": "bandwidth", "capabilities": { "bandwidth": true } } ] }`,
}

// Each of the lists that others write gives pods what it always gave them.
func TestPrivilegedContainerdLists(t *testing.T) {
	t.Parallel()
	for name, list := range lists {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachContainerd(t, list, func(t *testing.T, c *containerd) {
				c.write("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_IPV6_NETWORK=fd00:42::/56\n"+
					"FLANNEL_IPV6_SUBNET=fd00:42::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n")
				c.serveClient()
				before := c.settled()
				s := c.limited("a", 8080)
				c.published(8080, "a")
				c.publishedUDP(8080, "a")
				c.publishedBoth(s, "a")
				if strings.Contains(list, `"ipMasq": true`) {
					c.masqueraded(s.ask)
				}
				c.mustEnd(s)
				c.unchanged(before, "a pod")
			})
		})
	}
}
