// SPDX-License-Identifier: Apache-2.0

package loader

import "context"

// Sync brings the node's addresses, uplinks and reserved ports up to date with the kernel's tables.
func (d *Datapath) Sync(ctx context.Context) error { return nil }
