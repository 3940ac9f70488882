// SPDX-License-Identifier: Apache-2.0

// Package claims is the protocol between a node and the store of the pools: how a node claims
// addresses, confirms them in pools that overlap, gives them back, and takes up its state after a
// crash or a reboot.
//
// Every change of a pool is one atomic change of Store. docs/dev/adr/0040-cluster-addresses.md has the
// reasons. It must not know which store it talks to.
package claims

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// Errors of a Store.
var (
	// ErrConflict means that a condition of a Change does not hold, and nothing has changed.
	ErrConflict = errors.New("the pool has changed")
	// ErrUnavailable means that the store has not answered. What was asked for may have happened,
	// or may happen later.
	ErrUnavailable = errors.New("the store cannot be reached")
	// ErrDenied means that the store knows the caller and refuses.
	ErrDenied = errors.New("the store refuses")
)

// Store keeps pools. Reads are linearizable: they see every change that was answered before.
type Store interface {
	// Place names the kind of store, for the node's files.
	Place() string
	// Get returns a pool, or nil if there is none of that name.
	Get(ctx context.Context, name string) (*pool.Object, error)
	// List returns all pools.
	List(ctx context.Context) ([]pool.Object, error)
	// Create makes an empty pool. It is no error if there is one.
	Create(ctx context.Context, name, cidr string) error
	// Change changes a pool whole or not at all. It returns the pool as the change has left it, or
	// nil if the store does not say.
	Change(ctx context.Context, name string, c pool.Change) (*pool.Object, error)
	// Slice returns the range that a node has of a pool of slices.
	Slice(ctx context.Context, name, node string) (string, error)
	// SliceNodes returns the names of the nodes that may have slices.
	SliceNodes(ctx context.Context) (map[string]bool, error)
	// NodeName returns the name that the store has for a running node, or "" if it knows none.
	NodeName(ctx context.Context, n blocks.Node) (string, error)
	// Dead returns those of the boots that are certainly over.
	Dead(ctx context.Context, ids []pool.NodeID) (map[pool.NodeID]bool, error)
	// Gone reports whether the owner of a hold is certainly gone: no pod of it comes again.
	Gone(ctx context.Context, h pool.Hold) (bool, error)
	// Reservations returns whereabouts' reservations of addresses over all pools: the pod of each,
	// by its name.
	Reservations(ctx context.Context) (map[string]string, error)
	// Reserve makes such a reservation. It is no error if the pod has it, and ErrConflict if
	// another has.
	Reserve(ctx context.Context, name, podRef, ifName string) error
	// Unreserve removes those of the reservations, the pod of each by its name, that are for that
	// pod still.
	Unreserve(ctx context.Context, pods map[string]string) error
}

// FullError says that no address is free, and who has them.
type FullError struct {
	Pool, Range   string
	Size, Used    uint64
	Holders       string
	Wanted        string // the address that was asked for, if one was
	WantedOfOwner string // who has it
	Lent          bool   // nodes have addresses, and may give some back
}

// Error returns it in one line.
func (e *FullError) Error() string {
	if e.Wanted != "" {
		return "pool " + e.Pool + ": address " + e.Wanted + " is taken by " + e.WantedOfOwner
	}
	s := "pool " + e.Pool + ": no free address in " + e.Range + ": " + pool.Count(e.Used) + " of " + pool.Count(e.Size) + " are taken"
	if e.Holders != "" {
		s += "; most have " + e.Holders
	}
	return s
}

// HeldError says that the address which is kept for an owner is in use by an earlier pod of it.
type HeldError struct {
	Pool, Address, Holder string
}

// Error returns it in one line.
func (e *HeldError) Error() string {
	return "pool " + e.Pool + ": address " + e.Address + " is in use by " + e.Holder + ", until DEL or until the node is gone"
}

// ObjectError says that a pool is not as any program writes it.
type ObjectError struct{ err error }

// Error returns the cause.
func (e *ObjectError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *ObjectError) Unwrap() error { return e.err }
