// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
)

// A rule that is refused is not tried again. One that met another process's change
// is.
func TestEditTriesAgain(t *testing.T) {
	refused := &tool.Error{Command: "iptables-nft-restore", Status: 1, Stderr: "line 2 failed"}
	byKernel := &tool.Error{Command: "iptables-nft-restore", Status: statusBusy, Stderr: "line 3: RULE_APPEND failed (Too many links): rule in chain A"}
	tests := []struct {
		name     string
		err      error
		changing bool
		want     error
		restores int
	}{
		{"fine", nil, false, nil, 1},
		{"refused", refused, false, refused, 1},
		{"changed", refused, true, netfilter.ErrBusy, tool.Attempts},
		{"refused by the kernel", byKernel, false, byKernel, 1},
		{"refused by the kernel, changed", byKernel, true, netfilter.ErrBusy, tool.Attempts},
		{"locked", &tool.Error{Command: "iptables-legacy-restore", Status: statusBusy, Stderr: "xtables lock"}, false, netfilter.ErrBusy, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tooltest.NewTools()
			f.Fail["iptables-nft-restore"] = tt.err
			tables := New(tooltest.Env(t, f, tooltest.Kernel{}), VariantNFT)
			reads := 0
			f.BeforeSave = func() {
				if reads++; tt.changing {
					f.Answers["iptables-nft-save"] = fmt.Sprintf(":C%d - [0:0]\n", reads)
				}
			}
			err := tables.AddMasq(t.Context(), attachments.ID{Network: "n", ContainerID: "c"}, []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")})
			if !errors.Is(err, tt.want) || errors.Is(err, netfilter.ErrBusy) && !errors.Is(tt.want, netfilter.ErrBusy) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			restores := 0
			for _, r := range f.Runs {
				if strings.HasPrefix(r, "iptables-nft-restore --noflush --wait 5") {
					restores++
				}
			}
			if restores != tt.restores {
				t.Errorf("%d restores, want %d", restores, tt.restores)
			}
		})
	}
}
