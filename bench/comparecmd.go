// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/stats"
)

// errRegression is the answer, not a failure: it has been printed.
var errRegression = errors.New("there is a significant regression")

func runCompare(args []string) error {
	f := flag.NewFlagSet("bench compare", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "usage: bench compare [flags] OLD.json NEW.json")
		f.PrintDefaults()
	}
	test := stats.Test{}
	f.Float64Var(&test.Alpha, "alpha", 0.05, "the share of differences that may be none")
	f.Float64Var(&test.Threshold, "threshold", 0.05, "the smallest relative change of a median that matters: 0.05 is 5 %")
	peers := f.String("peer", "", "compare this peer only (default: all)")
	all := f.Bool("all", false, "print metrics without a difference too")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if f.NArg() != 2 {
		f.Usage()
		return fmt.Errorf("compare: %d files, want two", f.NArg())
	}
	if err := test.Check(); err != nil {
		return fmt.Errorf("-%w", err)
	}
	old, err := record.Read(f.Arg(0))
	if err != nil {
		return err
	}
	new, err := record.Read(f.Arg(1))
	if err != nil {
		return err
	}
	return compareFiles(os.Stdout, old, new, *peers, test, *all)
}

// compareFiles prints a line for each metric, and returns errRegression if one is significantly worse.
func compareFiles(w io.Writer, old, new *record.File, peer string, test stats.Test, all bool) error {
	var cells []*record.Cell
	var pairs []stats.Pair
	for i := range new.Cells {
		c := &new.Cells[i]
		if o := old.Find(c.Key); o != nil && (peer == "" || c.Peer == peer) {
			cells = append(cells, c)
			pairs = append(pairs, stats.Pair{Old: o.Samples, New: c.Samples, Less: c.Less})
		}
	}
	if len(pairs) == 0 {
		if peer != "" {
			return fmt.Errorf("-peer: %q: the two files have no metric of it in common", peer)
		}
		return errors.New("the two files have no metric in common")
	}
	fmt.Fprintf(w, "old: %s, commit %s, %s\nnew: %s, commit %s, %s\n", old.Started, old.Commit, old.Host, new.Started, new.Commit, new.Host)
	if old.Host.CPU != new.Host.CPU || old.Host.CPUs != new.Host.CPUs || old.Host.Kernel != new.Host.Kernel {
		fmt.Fprintln(w, "The machines or kernels differ: so may all figures.")
	}
	counts := map[stats.Verdict]int{}
	var rows [][]string
	for i, c := range test.Compare(pairs) {
		counts[c.Verdict]++
		if all || c.Verdict == stats.Better || c.Verdict == stats.Worse {
			rows = append(rows, []string{
				cells[i].Key.String(), fmt.Sprintf("%.4g ± %.2g", c.Old, c.OldMAD), fmt.Sprintf("%.4g ± %.2g", c.New, c.NewMAD), cells[i].Unit,
				fmt.Sprintf("%.3fx", c.Ratio), fmt.Sprintf("p=%.4f", c.P), fmt.Sprintf("q=%.4f", c.Q), string(c.Verdict),
			})
		}
	}
	if err := report.WriteRows(w, rows); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d metrics: %d worse, %d better, %d without a difference, %d with too few rounds (Mann-Whitney U, Benjamini-Hochberg, alpha %g; threshold %g %%)\n",
		len(pairs), counts[stats.Worse], counts[stats.Better], counts[stats.NoDifference], counts[stats.TooFew], test.Alpha, 100*test.Threshold)
	if n := len(old.Cells) + len(new.Cells) - 2*len(pairs); n > 0 && peer == "" {
		fmt.Fprintf(w, "%d metrics are in one of the files only\n", n)
	}
	if counts[stats.Worse] > 0 {
		return errRegression
	}
	return nil
}
