// SPDX-License-Identifier: Apache-2.0

// Package kubebin builds the programs of a Kubernetes cluster, the clients of Hubble's API and whereabouts, by the go command, from the
// module proxy alone, and keeps them in the user's cache directory. Tests that need a real API server use it, and so does test/cluster.
// It starts none.
//
// What is built is fixed by the modules in modules, each with its go.sum. A program is built again when its module changes.
package kubebin
