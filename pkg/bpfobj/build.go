// SPDX-License-Identifier: Apache-2.0

package bpfobj

import "crypto/sha256"

// Sum returns a hash of all compiled programs, which tells one build of them from another.
func Sum() [sha256.Size]byte {
	h := sha256.New()
	for _, object := range [][]byte{
		_PodEgressBytes, _PodIngressBytes, _UplinkIngressBytes, _UplinkEgressBytes, _OwnEgressBytes, _OwnIngressBytes, _EdtBytes,
		_XDPUplinkBytes,
		_CgroupSockBytes,
	} {
		h.Write(object)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
