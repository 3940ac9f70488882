// SPDX-License-Identifier: Apache-2.0

// Package dhcp tests the dhcp plugin, its daemon and its socket activation,
// also together with upstream's.
package dhcp
