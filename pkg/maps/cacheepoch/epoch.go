// SPDX-License-Identifier: Apache-2.0

// Package cacheepoch is the view of sl_cache_epoch, by which the programs learn that what they remember of published ports and endpoints
// has changed. Only the loader writes it. A view does not own its map: closing is the caller's.
package cacheepoch

import (
	"fmt"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

// Epoch is the view. The zero value is for readers of other maps: it has nothing to tell.
type Epoch struct{ m *bpfsys.Map }

// New returns a view of m.
func New(m *bpfsys.Map) Epoch { return Epoch{m} }

// Next tells the programs of a change that has been made. Its value is the time, which no two changes share.
func (e Epoch) Next() error {
	if e.m == nil {
		return nil
	}
	if err := bpfsys.Put(e.m, uint32(0), uint64(conntrack.Now())); err != nil {
		return fmt.Errorf("sl_cache_epoch: %w", err)
	}
	return nil
}
