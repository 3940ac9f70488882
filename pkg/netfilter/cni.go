// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// CNIError gives an error of this package its CNI code, with a sentence of what
// was tried. unusable is the code for tools that are missing: 105 in ADD, 50 in
// STATUS.
func CNIError(err error, unusable uint, format string, a ...any) error {
	code := cnierr.CodeKernel
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrBusy):
		code = cnierr.CodeTryAgain
	case errors.Is(err, ErrUnusable):
		code = unusable
	case errors.Is(err, ErrDiffers):
		code = cnierr.CodeCheck
	case errors.Is(err, ErrNoChain):
		code = cnierr.CodeConfig
	}
	return cnierr.Wrap(code, err, format, a...)
}
