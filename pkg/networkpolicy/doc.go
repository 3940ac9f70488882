// SPDX-License-Identifier: Apache-2.0

// Package networkpolicy compiles NetworkPolicy and ClusterNetworkPolicy objects into tables for one node's datapath, and keeps them up
// to date as pods, namespaces and policies change.
//
// An Engine takes objects and returns the changes of the tables. Tables applies the changes in memory and answers as the datapath
// would. Explain names the rules behind a verdict. docs/dev/adr/0062-networkpolicy-classes.md has the model and its reasons.
//
//   - Pods of a namespace with the same labels and named ports are one kind (partition.go).
//   - What a rule asks about its peer is an atom: selectors, a block of addresses, or a name for a port (atom.go).
//   - Kinds that all atoms in use say the same about are one cell; addresses in the same blocks are one region (region.go). A cell and
//     a region together are a class (class.go).
//   - For each segment of ports, a set of local pods has a program: tiers, priorities and isolation in one expression of atoms
//     (compile.go, program.go, set.go). A program has a point, and each class has a bit for it.
//
// What is unknown or cannot be told closes. The package knows no kernel and no client of Kubernetes; pkg/networkpolicy/kube converts
// the API's objects.
package networkpolicy
