// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// traffic is what one plugin process exchanges with the kernel by netlink.
type traffic struct{ requests, answers, bytes int }

// tracer starts plugins under strace while it is on.
type tracer struct {
	invoke.Exec

	strace, dir string
	on          bool
	got         traffic
}

var answer = regexp.MustCompile(`\brecv(?:from|msg)\b.* = ([0-9]+)$`)

func (x *tracer) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if !x.on || filepath.Base(path) == "host-local" {
		return x.Exec.ExecPlugin(ctx, path, stdin, env)
	}
	file := filepath.Join(x.dir, "trace")
	cmd := exec.CommandContext(ctx, x.strace, "-f", "-qq", "-e", "trace=sendto,sendmsg,recvfrom,recvmsg", "-e", "signal=none", "-o", file, path)
	var errOut bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stderr = env, bytes.NewReader(stdin), &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, errOut.Bytes())
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	x.got = traffic{}
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, " sendto(") || strings.Contains(line, " sendmsg(") {
			x.got.requests++
		}
		if m := answer.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			n, _ := strconv.Atoi(m[1])
			x.got.answers++
			x.got.bytes += n
		}
	}
	return out, nil
}

// What an ADD asks the kernel, and how much the kernel answers, is the same on a full node as on an empty one.
func TestPrivilegedAddCostIsFlat(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal(err)
	}
	const few, many = 10, 500
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			x := &tracer{Exec: netlab.NewExec(w.Stderr), strace: strace, dir: t.TempDir()}
			n := e2etest.Network{Main: main, Plugins: []string{}}
			rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{e2etest.Programs.Dir}, Conflist: n.Conflist(t), Exec: x})
			if err != nil {
				t.Fatal(err)
			}
			add := func(name string) error {
				p, err := w.Node.NewPod(name)
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = p.Close() })
				ctx, cancel := context.WithTimeout(context.Background(), e2etest.VerbTimeout)
				defer cancel()
				_, err = rt.Add(ctx, netlab.Attachment{ContainerID: name, NetNS: p.Path})
				return err
			}
			pods := 0
			fill := func(to int) {
				var wg sync.WaitGroup
				errs := make(chan error, many)
				next := make(chan int)
				for range 4 {
					wg.Go(func() {
						for i := range next {
							if err := add(fmt.Sprintf("pod%d", i)); err != nil {
								errs <- err
							}
						}
					})
				}
				for ; pods < to; pods++ {
					next <- pods
				}
				close(next)
				wg.Wait()
				select {
				case err := <-errs:
					t.Fatal(err)
				default:
				}
			}
			// The kernel repeats a dump during which a table changed, as by duplicate address detection: the least of three counts.
			measure := func() traffic {
				var all []traffic
				for i := range 3 {
					time.Sleep(300 * time.Millisecond) // the last look at the node holds so long
					x.on = true
					err := add(fmt.Sprintf("measured%d-%d", pods, i))
					x.on = false
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, x.got)
				}
				return slices.MinFunc(all, func(a, b traffic) int { return a.bytes - b.bytes })
			}
			fill(few)
			at10 := measure()
			fill(many)
			at500 := measure()
			t.Logf("%+v, then %+v", at10, at500)
			if at10 != at500 || at10.requests == 0 || at10.bytes == 0 {
				t.Errorf("with %d pods %+v, with %d %+v: the cost of ADD grows", few, at10, many, at500)
			}
		})
	}
}
