// SPDX-License-Identifier: Apache-2.0

package loader

// paths are the places of one datapath, all functions of the bpffs, the run directory and the network namespace.
type paths struct {
	root string
}
