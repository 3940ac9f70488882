// SPDX-License-Identifier: Apache-2.0

// Package fastpath tests that the fast path delivers every packet where the slow path delivers it. A seed decides what happens: Services
// and their endpoints, connections and what they send, rules that change, entries that netfilter loses. The same happens in two equal
// worlds, one with the fast path and one without, and what every receiver sees is compared.
package fastpath
