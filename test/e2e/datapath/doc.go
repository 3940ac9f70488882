// SPDX-License-Identifier: Apache-2.0

// Package datapath tests how packets travel: attach modes, fast and slow path,
// fragments, ICMP, offload, large transfers, and third parties that filter or
// translate.
package datapath
