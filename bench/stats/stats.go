// SPDX-License-Identifier: Apache-2.0

// Package stats compares samples of benchmarks: medians, their spread, and the Mann-Whitney U test of the library that benchstat uses.
// It knows nothing of what was measured.
package stats

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/aclements/go-moremath/stats"
)

// Median returns the middle sample, the mean of the two middle ones of an even number, and NaN of none.
func Median(samples []float64) float64 {
	n := len(samples)
	if n == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	if n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[n/2]
}

// MAD is the median of the distances to the median: half of the samples lie so near. It is in the unit of the samples.
func MAD(samples []float64) float64 {
	m := Median(samples)
	far := make([]float64, len(samples))
	for i, v := range samples {
		far[i] = math.Abs(v - m)
	}
	return Median(far)
}

// PValue is how often two samples of one population differ at least as much as these two, by the two-sided Mann-Whitney U test.
// It is 1 when all values are equal, and when there are none.
func PValue(a, b []float64) float64 {
	r, err := stats.MannWhitneyUTest(a, b, stats.LocationDiffers)
	if err != nil { // nothing to rank
		return 1
	}
	return r.P
}

// SmallestP is the p-value of two samples of these sizes that do not overlap at all: no difference can be surer.
func SmallestP(n, m int) float64 {
	if n == 0 || m == 0 {
		return 1
	}
	a, b := make([]float64, n), make([]float64, m)
	for i := range a {
		a[i] = float64(i)
	}
	for i := range b {
		b[i] = float64(n + i)
	}
	return PValue(a, b)
}

// Verdict is what a comparison of two samples says.
type Verdict string

// The verdicts. A difference is both sure and large enough to matter.
const (
	NoDifference Verdict = "no difference"
	Better       Verdict = "better"
	Worse        Verdict = "worse"
	// TooFew: whatever the samples are, no difference can be sure.
	TooFew Verdict = "too few rounds"
)

// Test says when two samples differ.
type Test struct {
	// Alpha is the share of found differences that may be none (the false discovery rate), and how often all comparisons together may
	// find one among equals.
	Alpha float64
	// Threshold is the smallest relative change of the median that matters: 0.03 is 3 %.
	Threshold float64
}

// Check names a value that makes no test.
func (t Test) Check() error {
	if !(t.Alpha > 0 && t.Alpha < 1) {
		return errors.New("alpha: must be above 0 and below 1")
	}
	if !(t.Threshold >= 0) || math.IsInf(t.Threshold, 0) {
		return errors.New("threshold: must be a number from 0 on")
	}
	return nil
}

// Pair is what to compare: new samples with old ones. Less says that smaller is better.
type Pair struct {
	Old, New []float64
	Less     bool
}

// Comparison is of new with old samples.
type Comparison struct {
	Old, New       float64 // medians
	OldMAD, NewMAD float64
	Ratio          float64 // of the medians, new to old; NaN where old is 0
	P              float64 // of this pair alone
	Q              float64 // corrected for the number of pairs
	Verdict        Verdict
}

// Compare judges all pairs together: the more are compared, the surer each difference has to be (Benjamini and Hochberg, 1995).
// Pairs with too few samples are not tested, and so do not count.
func (t Test) Compare(pairs []Pair) []Comparison {
	out := make([]Comparison, len(pairs))
	var tested []int
	for i, p := range pairs {
		out[i] = Comparison{Old: Median(p.Old), New: Median(p.New), OldMAD: MAD(p.Old), NewMAD: MAD(p.New), P: PValue(p.Old, p.New), Q: 1, Ratio: math.NaN(), Verdict: NoDifference}
		if out[i].Old != 0 {
			out[i].Ratio = out[i].New / out[i].Old
		}
		if SmallestP(len(p.Old), len(p.New)) > t.Alpha {
			out[i].Verdict = TooFew
		} else {
			tested = append(tested, i)
		}
	}
	slices.SortFunc(tested, func(a, b int) int { return cmp.Compare(out[a].P, out[b].P) })
	q := 1.0
	for rank, i := range slices.Backward(tested) {
		q = min(q, out[i].P*float64(len(tested))/float64(rank+1))
		c := &out[i]
		c.Q = q
		switch {
		case c.Q > t.Alpha || math.Abs(c.New-c.Old) <= t.Threshold*math.Abs(c.Old):
		case (c.New < c.Old) == pairs[i].Less:
			c.Verdict = Better
		default:
			c.Verdict = Worse
		}
	}
	return out
}
