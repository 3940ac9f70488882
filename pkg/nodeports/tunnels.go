// SPDX-License-Identifier: Apache-2.0

package nodeports

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/hostport"
)

// TunnelsFile is where the node agent writes which UDP ports its devices use. A pod that published one would get the traffic of all pods
// between this node and the others.
const TunnelsFile = "/run/sluice/tunnels"

// Tunnel is a device that carries packets of pods in UDP.
type Tunnel struct {
	Port   uint16
	Device string
}

// Needs reports whether a published port would take packets of the tunnel.
func (t Tunnel) Needs(p hostport.Key) bool {
	return p.Proto == unix.IPPROTO_UDP && p.Port == t.Port && !p.HostIP.IsLoopback()
}

// ReadTunnels reads a file. One that is missing has none.
func ReadTunnels(path string) ([]Tunnel, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ports of tunnels: %w", err)
	}
	var out []Tunnel
	for line := range strings.Lines(string(text)) {
		port, device, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			out = append(out, Tunnel{uint16(n), device})
		}
	}
	return out, nil
}

// FormatTunnels returns the content of a file: a line of port and device for each.
func FormatTunnels(tunnels []Tunnel) []byte {
	var b []byte
	for _, t := range tunnels {
		b = fmt.Appendf(b, "%d %s\n", t.Port, t.Device)
	}
	return b
}
