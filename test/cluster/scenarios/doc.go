// SPDX-License-Identifier: Apache-2.0

// Package scenarios has the tests of a whole cluster, with real API objects. They need one that is up: "make cluster-test" makes it, runs
// them and takes it down. -cluster names one that "make cluster" has made.
package scenarios
