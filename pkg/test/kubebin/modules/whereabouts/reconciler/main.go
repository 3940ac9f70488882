// SPDX-License-Identifier: Apache-2.0

// Command reconciler runs whereabouts' reconciler once, as the user of a kubeconfig: whereabouts' own program only runs in a pod.
package main

import (
	"log"
	"os"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/reconciler"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/storage/kubernetes"
)

func main() {
	client, err := kubernetes.NewClientViaKubeconfig(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	looper, err := reconciler.NewReconcileLooperWithClient(client)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := looper.ReconcileIPPools(); err != nil {
		log.Fatal(err)
	}
	if err := looper.ReconcileOverlappingIPAddresses(); err != nil {
		log.Fatal(err)
	}
}
