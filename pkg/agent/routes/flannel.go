// SPDX-License-Identifier: Apache-2.0

package routes

// Annotations by which flannel's nodes know each other with its subnet manager "kube" (pkg/subnet/kube of flannel).
const (
	flannelPrefix   = "flannel.alpha.coreos.com/"
	flannelType     = flannelPrefix + "backend-type"
	flannelData     = flannelPrefix + "backend-data"
	flannelDataV6   = flannelPrefix + "backend-v6-data"
	flannelPublic   = flannelPrefix + "public-ip"
	flannelPublicV6 = flannelPrefix + "public-ipv6"
	flannelManaged  = flannelPrefix + "kube-subnet-manager"
)

func flannelKeys() []string {
	return []string{flannelType, flannelData, flannelDataV6, flannelPublic, flannelPublicV6, flannelManaged}
}
