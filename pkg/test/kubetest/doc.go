// SPDX-License-Identifier: Apache-2.0

// Package kubetest gives a test a real API server: etcd and kube-apiserver, in a network namespace, with their files in a folder of the
// test. They end with the test, and when it is killed. test/cluster takes keys, certificates and command lines from here too.
//
// There is no controller, no scheduler and no kubelet: a test writes what these would write. It needs root, and the programs of
// pkg/test/kubebin, which it builds when they are missing.
package kubetest
