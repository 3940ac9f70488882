// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/bench/tool"
	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Load is what to measure: Op is rr, crr or stream.
type Load struct {
	Op    string
	Flows int
	For   time.Duration
}

// Measure runs a load from the client through the hostPort. cpu is the time that both ends and the kernel's ksoftirqd used for it.
func (w *World) Measure(l Load) (r traffic.Result, cpu time.Duration, err error) {
	cpu, err = w.CPU(func() (client time.Duration, err error) {
		rep, err := w.call(traffic.Request{Op: l.Op, Addr: w.target, For: l.For, Conns: l.Flows})
		r = rep.Result
		return rep.CPU, err
	})
	return r, cpu, err
}

// CPU runs f, which returns what its own processes used, and adds what the server's process and ksoftirqd used at that time.
// What the kernel does with packets in a process is in that process's time, unless it has CONFIG_IRQ_TIME_ACCOUNTING.
func (w *World) CPU(f func() (time.Duration, error)) (time.Duration, error) {
	server, soft, err := w.used()
	if err != nil {
		return 0, err
	}
	own, err := f()
	if err != nil {
		return 0, err
	}
	serverAfter, softAfter, err := w.used()
	return own + serverAfter - server + softAfter - soft, err
}

func (w *World) used() (server, soft time.Duration, err error) {
	r, err := w.server.Call(traffic.Request{Op: "cpu"})
	if err != nil {
		return 0, 0, err
	}
	soft, err = softirqThreads()
	return r.CPU, soft, err
}

var findSoftirqThreads = sync.OnceValues(func() (pids []string, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(comm), "ksoftirqd/") {
			pids = append(pids, filepath.Dir(name))
		}
	}
	return pids, err
})

// softirqThreads is the CPU time of all ksoftirqd. In a PID namespace there are none to see.
func softirqThreads() (sum time.Duration, err error) {
	threads, err := findSoftirqThreads()
	if err != nil {
		return 0, err
	}
	for _, dir := range threads {
		raw, err := os.ReadFile(filepath.Join(dir, "schedstat"))
		if err != nil {
			return 0, err
		}
		field, _, _ := strings.Cut(string(raw), " ")
		ns, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s/schedstat: %w", dir, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// Port is a port of the node that leads to the server's port of the same number: Iperf3Port or SockperfPort.
func (w *World) Port(port uint16) netip.AddrPort { return netip.AddrPortFrom(w.target.Addr(), port) }

// WithTool runs a tool, whose server listens on a port of Port, or with 0 against the server that is there already. The CPU time is
// that of the tool's processes, and what CPU adds.
func (w *World) WithTool(port uint16, f func(tool.Ends) (tool.Result, error)) (r tool.Result, err error) {
	e := tool.Ends{Client: w.lab.Client().NS, Server: w.serverNS, Listen: port, Target: w.target}
	if port != 0 {
		e.Target = w.Port(port)
	}
	r.CPU, err = w.CPU(func() (own time.Duration, err error) {
		err = w.observed(func() error {
			r, err = f(e)
			return err
		})
		return r.CPU, err
	})
	return r, err
}

// NodeAddr is a port of the node as clients address it, for the text of commands.
func NodeAddr(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netlab.IP4(netlab.DefaultUplink(0).Node), port)
}

// heldSources is how many addresses held connections come from: each has 50,000.
const heldSources = 2

// Hold makes it n connections through the hostPort that are open and idle. Release closes them.
func (w *World) Hold(n int) error {
	sources := make([]netip.Addr, heldSources)
	at := netlab.IP4(w.lab.Client().Uplink.Client)
	for i := range sources {
		at = at.Next()
		sources[i] = at
		line := []string{"addr", "replace", at.String() + "/24", "dev", "eth0"}
		if err := w.lab.Client().Do(func() error { _, err := netlab.Run("ip", line...); return err }); err != nil {
			return err
		}
	}
	if _, err := w.server.Call(traffic.Request{Op: "files", Conns: n}); err != nil {
		return err
	}
	_, err := w.client.Call(traffic.Request{Op: "hold", Addr: w.target, Sources: sources, Conns: n})
	return err
}

// Release closes what Hold has opened, and returns how many the server had.
func (w *World) Release() (int, error) {
	if _, err := w.client.Call(traffic.Request{Op: "release"}); err != nil {
		return 0, err
	}
	r, err := w.server.Call(traffic.Request{Op: "release"})
	return int(r.Count), err
}

// SetRules makes it n netfilter rules of a third party on the node, and none of them matches: the packets of a node meet such a
// list in INPUT or in FORWARD. 0 removes them.
func (w *World) SetRules(n int) error {
	var text strings.Builder
	text.WriteString("table ip thirdparty\ndelete table ip thirdparty\n")
	if n > 0 {
		text.WriteString("table ip thirdparty {\n chain unmatched {\n")
		for i := range n {
			fmt.Fprintf(&text, "  ip saddr 198.18.%d.%d tcp dport %d drop\n", i/250%256, i%250+1, 1024+i%60000)
		}
		text.WriteString(" }\n")
		for _, hook := range []string{"input", "forward"} {
			fmt.Fprintf(&text, " chain %s {\n  type filter hook %s priority -5; policy accept;\n  jump unmatched\n }\n", hook, hook)
		}
		text.WriteString("}\n")
	}
	return w.lab.Node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%d rules of a third party: %w: %s", n, err, out)
		}
		return nil
	})
}
