// SPDX-License-Identifier: Apache-2.0

// Package kube converts objects of Kubernetes' API to what pkg/networkpolicy compiles, with every default of the API. It holds no
// state and asks no API server.
//
// ClusterNetworkPolicy is not converted yet: its Go types are in a module with many others behind it (sigs.k8s.io/network-policy-api).
// pkg/networkpolicy has what such an object means.
package kube
