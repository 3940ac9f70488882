// SPDX-License-Identifier: Apache-2.0

package kubebin

import (
	"maps"
	"slices"
)

// Version is the release of Kubernetes.
const Version = "v1.34.4"

// The programs that are built.
const (
	APIServer         = "kube-apiserver"
	Etcd              = "etcd"
	Kubectl           = "kubectl"
	Kubelet           = "kubelet"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Proxy             = "kube-proxy"
	CoreDNS           = "coredns"
	Agnhost           = "agnhost"
	E2E               = "e2e.test"
	Ginkgo            = "ginkgo"
	Hubble            = "hubble"       // Cilium's clients of Hubble's API
	HubbleRelay       = "hubble-relay" // gathers the answers of many nodes
	Whereabouts       = "whereabouts"
	// WhereaboutsReconciler does one run of whereabouts' reconciler, with the kubeconfig that its argument names.
	WhereaboutsReconciler = "whereabouts-reconciler"
)

// A program is a main package, or the tests of one, in one of the modules.
type program struct {
	module string // the folder below modules
	pkg    string
	tests  bool // a test binary
}

const kubernetes = "k8s.io/kubernetes/"

var programs = map[string]program{
	Etcd:              {module: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
	CoreDNS:           {module: "coredns", pkg: "./"},
	APIServer:         {module: "kubernetes", pkg: kubernetes + "cmd/kube-apiserver"},
	Kubectl:           {module: "kubernetes", pkg: kubernetes + "cmd/kubectl"},
	Kubelet:           {module: "kubernetes", pkg: kubernetes + "cmd/kubelet"},
	ControllerManager: {module: "kubernetes", pkg: kubernetes + "cmd/kube-controller-manager"},
	Scheduler:         {module: "kubernetes", pkg: kubernetes + "cmd/kube-scheduler"},
	Proxy:             {module: "kubernetes", pkg: kubernetes + "cmd/kube-proxy"},
	Agnhost:           {module: "kubernetes", pkg: kubernetes + "test/images/agnhost"},
	E2E:               {module: "kubernetes", pkg: "./e2e", tests: true},
	Ginkgo:            {module: "kubernetes", pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
	Hubble:            {module: "hubble", pkg: "github.com/cilium/cilium/hubble"},
	HubbleRelay:       {module: "hubble", pkg: "github.com/cilium/cilium/hubble-relay"},
	Whereabouts:       {module: "whereabouts", pkg: "github.com/k8snetworkplumbingwg/whereabouts/cmd"},

	WhereaboutsReconciler: {module: "whereabouts", pkg: "./reconciler"},
}

// All names every program.
func All() []string { return slices.Sorted(maps.Keys(programs)) }

// ControlPlane names what answers the API, and what asks it.
func ControlPlane() []string { return []string{Etcd, APIServer, Kubectl} }
