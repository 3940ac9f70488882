// SPDX-License-Identifier: Apache-2.0

// Package policy tests firewall rules, ingressPolicy, anti-spoofing and the
// denylist.
package policy
