// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/peer"
	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/shaping"
)

// bandwidth are the flags of that command.
type bandwidth struct {
	backends, rates   string
	refBin, sluiceBin string
	duration          time.Duration
	asJSON            bool
}

// runBandwidth compares back ends and the reference plugin at each rate. It runs
// wherever there is ip: the binary, sluice-cni and the reference's bandwidth are
// all it needs, so that they can be copied to a machine with another kernel.
func runBandwidth(ctx context.Context, args []string) error {
	var b bandwidth
	f := flag.NewFlagSet("bandwidth", flag.ContinueOnError)
	f.StringVar(&b.backends, "peers", "edt,tbf,reference", "what to compare: edt, tbf, reference, none")
	f.StringVar(&b.rates, "rates", "1,10,100,1000", "Mbit/s, separated by commas")
	f.StringVar(&b.refBin, "reference-bin", "", "directory with the reference plugins (default: built once into the user's cache)")
	f.StringVar(&b.sluiceBin, "sluice-bin", "bin", "directory with sluice-cni")
	f.DurationVar(&b.duration, "d", 6*time.Second, "load of each direction")
	f.BoolVar(&b.asJSON, "json", false, "print results as JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	peers, err := b.peers(ctx)
	if err != nil {
		return err
	}
	results, err := b.measure(ctx, peers)
	if err != nil {
		return err
	}
	if b.asJSON {
		return json.NewEncoder(os.Stdout).Encode(results)
	}
	fmt.Println(report.ThisHost())
	printShaping(os.Stdout, results)
	return nil
}

func (b *bandwidth) peers(ctx context.Context) ([]shaping.Peer, error) {
	ours, err := filepath.Abs(filepath.Join(b.sluiceBin, "sluice-cni"))
	if err != nil {
		return nil, err
	}
	var out []shaping.Peer
	for name := range strings.SplitSeq(b.backends, ",") {
		switch name {
		case "none":
			out = append(out, shaping.Peer{Name: name})
		case "edt", "tbf":
			out = append(out, shaping.Peer{Name: name, Plugin: ours, Keys: map[string]any{"backend": name}})
		case peer.Reference:
			path, err := peer.ReferencePlugin(ctx, b.refBin, "bandwidth", os.Stderr)
			if err != nil {
				return nil, err
			}
			out = append(out, shaping.Peer{Name: name, Plugin: path})
		default:
			return nil, fmt.Errorf("unknown peer %q: edt, tbf, %s or none", name, peer.Reference)
		}
	}
	return out, nil
}

func (b *bandwidth) measure(ctx context.Context, peers []shaping.Peer) (results []shaping.Result, err error) {
	w, err := shaping.NewWorld()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for text := range strings.SplitSeq(b.rates, ",") {
		mbit, err := strconv.ParseUint(text, 10, 32)
		if err != nil || mbit == 0 {
			return nil, fmt.Errorf("rate %q: not a number of Mbit/s", text)
		}
		for _, p := range peers {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r, err := w.Measure(p, mbit*1e6, b.duration)
			if err != nil {
				return nil, fmt.Errorf("%s at %d Mbit/s: %w", p.Name, mbit, err)
			}
			results = append(results, r)
		}
	}
	return results, nil
}

func printShaping(w io.Writer, results []shaping.Result) {
	fmt.Fprintf(w, "%-10s %9s  %-8s %10s %7s %12s %12s %12s %5s\n",
		"peer", "Mbit/s", "", "goodput", "", "echo idle", "loaded p50", "p99", "lost")
	for _, r := range results {
		for _, d := range []struct {
			name string
			f    shaping.Figures
		}{{"ingress", r.Ingress}, {"egress", r.Egress}} {
			fmt.Fprintf(w, "%-10s %9d  %-8s %10.2f %6.1f%% %12v %12v %12v %5d\n", r.Peer, r.Rate/1e6, d.name, d.f.Goodput, 100*d.f.Efficient,
				d.f.IdleP50.Round(time.Microsecond), d.f.P50.Round(time.Microsecond), d.f.P99.Round(time.Microsecond), d.f.Lost)
		}
	}
}
