// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"

	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
)

// configurePod gives the pod's end its addresses and routes and sets it up.
func (t *attach) configurePod(ctx context.Context) error {
	if t.DisableContainerIf {
		return nil
	}
	i := podiface.Interface{NS: t.NS, Pod: t.Pod, Link: t.podEnd, Log: t.args.Log, DAD: t.EnableDAD}
	return i.ConfigureResult(ctx, t.rec.Addrs, t.result)
}
