// SPDX-License-Identifier: Apache-2.0

// Package kube makes a cluster: a control plane, nodes and an outside machine, joined by one Ethernet, on machines of test/cluster/machine.
// The network is dual-stack. A cluster is a folder below /run/sluice-cluster, and outlives the program that made it.
package kube
