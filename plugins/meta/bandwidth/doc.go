// SPDX-License-Identifier: Apache-2.0

// Package bandwidth is the chained plugin that limits how fast a pod sends and
// receives (the bandwidth capability). It owns the qdiscs on both ends of the
// pod's device, the intermediate device (IFB) of an attachment, and the queue
// features of the attachment's endpoint. BPF programs and maps belong to the
// loader.
//
// Two backends give the same rates. "edt" sets departure times by a BPF program
// above an fq qdisc: it has no queue of its own, and back-pressure reaches the
// pod's sockets. "tbf" is upstream's token bucket under upstream's names, on an
// IFB for what the pod sends.
//
// How an ADD runs:
//
//	parse          config.go  read and check all keys
//	forget         del.go     remove what an earlier ADD of the attachment made
//	openDevice     device.go  find both ends of the pod's device
//	open           add.go     choose the backend, open the datapath if there is one
//	plan           add.go     what will be made; Begin writes it into the record
//	enable         add.go     keep the pod's packets on the path that has a qdisc
//	applyIngress   add.go     by edt.go or tbf.go
//	applyEgress    add.go     by edt.go or tbf.go, with a policer at the host veth
//
// DEL and GC remove what the record names (del.go), then devices by their names.
package bandwidth
