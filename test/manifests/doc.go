// SPDX-License-Identifier: Apache-2.0

// Package manifests tests deploy/kustomize against a real API server: whether it takes them, and what the agent
// may do with the rights that they give. Only its tests have code. What Helm renders is tested in test/chart.
package manifests
