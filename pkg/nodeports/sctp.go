// SPDX-License-Identifier: Apache-2.0

package nodeports

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// sctpEndpoints is there once the kernel has SCTP. To ask by sock_diag would load the module.
const sctpEndpoints = "/proc/thread-self/net/sctp/eps"

func sctpListeners() ([]rtnl.Listener, error) {
	text, err := os.ReadFile(sctpEndpoints)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return parseSCTP(string(text)), err
}

// parseSCTP reads lines of ENDPT, SOCK, STY, SST, HBKT, LPORT, UID, INODE and then the addresses (net/sctp/proc.c).
func parseSCTP(text string) []rtnl.Listener {
	const listening = "10" // SCTP_SS_LISTENING
	var out []rtnl.Listener
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 9 || f[3] != listening {
			continue
		}
		port, err := strconv.ParseUint(f[5], 10, 16)
		if err != nil {
			continue
		}
		inode, _ := strconv.ParseUint(f[7], 10, 32)
		for _, at := range f[8:] {
			if a, err := netip.ParseAddr(at); err == nil {
				out = append(out, rtnl.Listener{Local: netip.AddrPortFrom(a.Unmap(), uint16(port)), Inode: uint32(inode)})
			}
		}
	}
	return out
}
