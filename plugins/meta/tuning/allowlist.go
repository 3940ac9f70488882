// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/allowlist"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// allowed refuses the first key that no expression of the node's allowlist
// matches. They see the key as it was written.
func (p *plugin) allowed(ctx context.Context, sysctls []sysctlPair) error {
	if len(sysctls) == 0 {
		return nil
	}
	given := make([]string, len(sysctls))
	for i, s := range sysctls {
		given[i] = s.given
	}
	key, err := allowlist.First(ctx, p.Allowlist, given, p.Match)
	var bad *allowlist.ExpressionError
	switch {
	case errors.As(err, &bad):
		return cnierr.New(cnierr.CodeConfig, bad.Error(), bad.Why)
	case err != nil:
		return cnierr.Wrap(cnierr.CodeIO, err, "ask the sysctl allowlist")
	case key != "":
		return cnierr.Config("sysctl", key, "is not on the node's allowlist "+p.Allowlist)
	}
	return nil
}
