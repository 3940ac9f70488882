// SPDX-License-Identifier: Apache-2.0

// Package masquerade tests SNAT at the uplink: what is masqueraded, port
// allocation, lost conntrack entries.
package masquerade
