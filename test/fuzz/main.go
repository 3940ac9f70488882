// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs every fuzz target of the module for a time, and says what it
// found. A finding is an input in testdata/fuzz of the target's package: it fails
// "go test" from then on, and belongs into the commit that repairs it.
//
//	go run ./test/fuzz -time 10m                 every target
//	go run ./test/fuzz -time 1m -match 'portmap|FuzzNAT'
//	go run ./test/fuzz -time 1s -turns 30        a minute for one of 30 parts, another part at each commit
//	go run ./test/fuzz -list
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/testfuncs"
)

type target = testfuncs.Func

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		stop()
		os.Exit(1) // stop was called
	}
}

func run(ctx context.Context) error {
	each := flag.Duration("time", time.Minute, "`time` for each target")
	match := flag.String("match", "", "only targets whose \"DIRECTORY NAME\" a `pattern` matches")
	turns := flag.Int("turns", 0, "fuzz a minute long each target of one of so many `parts`, chosen by the commit's hash")
	atOnce := flag.Int("parallel", 2, "`targets` at a time")
	logs := flag.String("logs", "bin/fuzz", "`directory` for what each target printed")
	list := flag.Bool("list", false, "list the targets")
	flag.Parse()
	wanted, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	targets, err := testfuncs.Find(ctx)
	if err != nil {
		return err
	}
	targets = slices.DeleteFunc(targets, func(t target) bool {
		return !strings.HasPrefix(t.Name, "Fuzz") || !wanted.MatchString(t.String())
	})
	if len(targets) == 0 {
		return fmt.Errorf("no target matches %q", *match)
	}
	if *list {
		for _, t := range targets {
			fmt.Println(t)
		}
		return nil
	}
	if *turns < 0 {
		return fmt.Errorf("-turns %d: want a number of parts, or 0 for none", *turns)
	}
	turn := 0
	if *turns > 0 {
		if turn, err = turnOf(ctx, *turns); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(*logs, 0o755); err != nil {
		return err
	}
	return all(ctx, targets, times(len(targets), *each, *turns, turn), *atOnce, *logs)
}

// longTime is what a target gets when it is its turn.
const longTime = time.Minute

// turnOf chooses one of so many parts by the hash of the commit: a run can be repeated, and over time all have their turn.
func turnOf(ctx context.Context, turns int) (int, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return 0, fmt.Errorf("-turns %d: git rev-parse HEAD: %w", turns, err)
	}
	return partOf(strings.TrimSpace(string(out)), turns)
}

// partOf is the part of a hash in hexadecimal digits.
func partOf(hash string, turns int) (int, error) {
	const digits = 8 // more than enough to spread
	if len(hash) < digits {
		return 0, fmt.Errorf("git rev-parse HEAD: %q is no hash", hash)
	}
	n, err := strconv.ParseUint(hash[:digits], 16, 64)
	return int(n % uint64(turns)), err
}

// times is how long each of n targets is fuzzed.
func times(n int, each time.Duration, turns, turn int) []time.Duration {
	out := slices.Repeat([]time.Duration{each}, n)
	for i := turn; turns > 0 && i < n; i += turns {
		out[i] = max(each, longTime)
	}
	return out
}

// all runs the targets, each for its time, and returns an error that names those that found something.
func all(ctx context.Context, targets []target, each []time.Duration, atOnce int, logs string) error {
	var mu sync.Mutex
	var found []string
	slots := make(chan struct{}, max(1, atOnce))
	var running sync.WaitGroup
	for i, t := range targets {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			said, err := one(ctx, t, each[i], logs)
			mu.Lock()
			defer mu.Unlock()
			fmt.Printf("%-52s %s\n", t, said)
			if err != nil && ctx.Err() == nil {
				found = append(found, t.String())
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if len(found) > 0 {
		slices.Sort(found)
		return fmt.Errorf("%d of %d targets failed: %s; see %s", len(found), len(targets), strings.Join(found, ", "), logs)
	}
	fmt.Printf("%d targets, no finding\n", len(targets))
	return nil
}

// one runs a target and returns what there is to say: the inputs tried, or the finding.
func one(ctx context.Context, t target, each time.Duration, logs string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.Name+"$", "-fuzztime="+each.String(), "-fuzzminimizetime=5s", "-parallel=1", "./"+t.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	log := filepath.Join(logs, strings.ReplaceAll(t.Dir, "/", "_")+"_"+t.Name+".log")
	if werr := os.WriteFile(log, out, 0o644); werr != nil {
		return "", werr
	}
	if err != nil && !ranOut(out) {
		return "FAILED\n" + indent(out), err
	}
	return summary(out), nil
}

// ranOutLine is all that go test says of a target whose time ended at a bad moment (golang.org/issue/75804, Go before 1.27).
var ranOutLine = regexp.MustCompile(`(?m)^--- FAIL: \S+ \([0-9.]+s\)\n    context deadline exceeded\nFAIL$`)

// ranOut says that go test failed for the end of the time alone. With a finding it writes an input, and says so.
func ranOut(out []byte) bool {
	return ranOutLine.Match(out) && !bytes.Contains(out, []byte("Failing input")) && !bytes.Contains(out, []byte("panic"))
}

// progress is the line that go test prints every few seconds.
var progress = regexp.MustCompile(`fuzz: elapsed: (\S+), execs: (\d+).*?new interesting: (\d+) \(total: (\d+)\)`)

func summary(out []byte) string {
	lines := progress.FindAllSubmatch(out, -1)
	if len(lines) == 0 {
		return "no input beyond the seeds"
	}
	last := lines[len(lines)-1]
	return fmt.Sprintf("%9s inputs in %s, %s of %s new", last[2], last[1], last[3], last[4])
}

// indent shows the end of what a target printed.
func indent(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	lines = lines[max(0, len(lines)-30):]
	return "    " + strings.Join(lines, "\n    ")
}
