// SPDX-License-Identifier: Apache-2.0

// Package networkpolicy compares pkg/networkpolicy with the engines of other projects: cyclonus' matcher, on its own cases and on random
// ones, and that of kube-network-policies, which knows ClusterNetworkPolicy too. It needs no cluster and no privileges. It is a module
// of its own, because neither engine belongs into the product's go.mod: run it here, with GOWORK=off, or by make networkpolicy-oracle.
package networkpolicy
