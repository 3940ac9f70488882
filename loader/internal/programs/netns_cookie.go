// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

// netnsCookie returns by what programs recognise sockets of the calling thread's network namespace. Programs could ask for it
// before processes could: on such a kernel a program is asked.
func netnsCookie(ctx context.Context, t *pintree.Tree) (uint64, error) {
	cookie, err := pintree.SoNetnsCookie()
	if err != nil || cookie != 0 {
		return cookie, err
	}
	root, err := t.CgroupRoot()
	if err != nil || root == "" {
		return 0, err
	}
	return t.Loader.NetnsCookie(ctx, root)
}
