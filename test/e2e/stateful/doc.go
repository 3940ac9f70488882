// SPDX-License-Identifier: Apache-2.0

// Package stateful tests that rules with state mean beside Sluice what they mean beside upstream: each ruleset runs in two
// equal worlds, and every verdict and every entry that is left in netfilter's connection table is compared.
package stateful
