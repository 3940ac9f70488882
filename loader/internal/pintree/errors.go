// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/loader/loadapi"
)

// The errors of several packages of the loader. Package loader has them too, and says what each means.
var (
	ErrUnavailable  = errors.New("eBPF datapath unavailable")
	ErrNotLoaded    = errors.New("eBPF datapath not loaded")
	ErrIncompatible = loadapi.ErrIncompatible
	ErrFull         = errors.New("map is full")
	ErrForeign      = errors.New("not root's alone")
	ErrDiffers      = errors.New("datapath state differs")
	ErrConflict     = errors.New("taken by another program")
	ErrNoDevice     = errors.New("no such device")
)

// Differs returns an error that wraps ErrDiffers.
func Differs(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDiffers}, a...)...)
}
