// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Netfilter loses its table while connections are fast ("conntrack -F"). They go on, and their ends reach the other side, by a FIN and by a RST.
// Where what netfilter takes for invalid is dropped that does not hold: see known-gaps.md.
func TestPrivilegedEndsWithoutEntry(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{`{"fastPath": "off"}`, `{}`} {
		t.Run(conf, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(conf)
			e2etest.LoadNFT(t, w.Node, "table inet other {\nchain forward {\ntype filter hook forward priority 0;\nct state established accept\n}\n}\n")
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range []struct {
					name     string
					from, at e2etest.Place
					to       string
					port     string
				}{
					{"client to hostPort", w.Client(), web, e2etest.At(fam.Node(w.Client()), 8080), ":80"},
					{"client to pod", w.Client(), web, e2etest.At(fam.Pod(web), 80), ":80"},
					{"pod to client", app, w.Client(), e2etest.At(fam.Client(w.Client()), 9000), ":9000"},
				} {
					for _, server := range []bool{false, true} {
						for _, reset := range []bool{false, true} {
							t.Run(fmt.Sprintf("%s, by the server %v, RST %v", x.name, server, reset), func(t *testing.T) {
								l, err := x.at.Listen("tcp"+fam.Suffix, x.port)
								if err != nil {
									t.Fatal(err)
								}
								defer l.Close()
								c, err := x.from.DialFrom(t.Context(), "tcp"+fam.Suffix, "", x.to)
								if err != nil {
									t.Fatal(err)
								}
								defer c.Close()
								s, err := l.Accept()
								if err != nil {
									t.Fatal(err)
								}
								defer s.Close()
								exchange := func() {
									for range e2etest.LongTalk {
										for _, ends := range [][2]net.Conn{{c, s}, {s, c}} {
											if _, err := ends[0].Write([]byte("word")); err != nil {
												t.Fatal(err)
											}
											if _, err := io.ReadFull(ends[1], make([]byte, 4)); err != nil {
												t.Fatal(err)
											}
										}
									}
								}
								exchange()
								e2etest.MustRun(t, w.Node, "conntrack -F")
								exchange()
								time.Sleep(60 * time.Millisecond) // delayed acknowledgments
								ends, other := c, s
								if server {
									ends, other = s, c
								}
								want := io.EOF
								if reset {
									want = unix.ECONNRESET
									_ = ends.(*net.TCPConn).SetLinger(0)
								}
								_ = ends.Close()
								_ = other.SetReadDeadline(time.Now().Add(2 * time.Second))
								if _, err := other.Read(make([]byte, 4)); !errors.Is(err, want) {
									t.Errorf("the other end: %v, want %v", err, want)
								}
							})
						}
					}
				}
			})
		})
	}
}
