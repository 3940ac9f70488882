// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMedianAndMAD(t *testing.T) {
	for _, tt := range []struct {
		in          []float64
		median, mad float64
	}{
		{[]float64{3}, 3, 0},
		{[]float64{9, 1, 5}, 5, 4},
		{[]float64{4, 1, 2, 9}, 3, 1.5},
		{[]float64{1, 1, 1, 1000}, 1, 0}, // one outlier says nothing
	} {
		in := slices.Clone(tt.in)
		if m, d := Median(in), MAD(in); m != tt.median || d != tt.mad {
			t.Errorf("%v: %v and %v, want %v and %v", tt.in, m, d, tt.median, tt.mad)
		}
		if !slices.Equal(in, tt.in) {
			t.Errorf("the samples were reordered: %v", in)
		}
	}
	if m := Median(nil); !math.IsNaN(m) {
		t.Errorf("median of nothing: %v", m)
	}
}

// noisy are n samples around a median as a busy machine has them: a long tail to one side.
func noisy(r *rand.Rand, n int, around float64) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = around * (1 + 0.02*r.ExpFloat64())
	}
	return s
}

// Ten metrics measured twice are no difference, and one of them shifted by 10 % is found alone, in the right direction.
// That holds for nearly all of 300 runs: alpha says how many.
func TestControlAndShift(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	test := Test{Alpha: 0.01}
	loud, found, wrong := 0, 0, 0
	for range 300 {
		var equals []Pair
		for range 10 {
			equals = append(equals, Pair{noisy(r, 10, 100), noisy(r, 10, 100), true})
		}
		for _, c := range test.Compare(equals) {
			if c.Verdict != NoDifference {
				loud++
				break
			}
		}
		shifted := slices.Clone(equals)
		shifted[3] = Pair{noisy(r, 10, 100), noisy(r, 10, 110), true}
		shifted[7] = Pair{noisy(r, 10, 100), noisy(r, 10, 110), false}
		got := test.Compare(shifted)
		if got[3].Verdict == Worse && got[7].Verdict == Better {
			found++
		}
		for i, c := range got {
			if c.Verdict != NoDifference && i != 3 && i != 7 {
				wrong++
			}
		}
	}
	if loud > 10 || found < 285 || wrong > 15 {
		t.Errorf("of 300 runs: %d of equals differ, %d shifts found, %d differences that are none", loud, found, wrong)
	}
}

// Without the correction, comparing many metrics of equals finds differences: the correction is what keeps the control quiet.
func TestCorrectionMatters(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	alone, together := 0, 0
	var pairs []Pair
	test := Test{Alpha: 0.05}
	for range 400 {
		p := Pair{noisy(r, 10, 100), noisy(r, 10, 100), true}
		pairs = append(pairs, p)
		if test.Compare([]Pair{p})[0].Verdict != NoDifference {
			alone++
		}
	}
	for _, c := range test.Compare(pairs) {
		if c.Verdict != NoDifference {
			together++
		}
	}
	if alone < 5 || alone > 40 || together > 2 {
		t.Errorf("of 400 equals %d differ alone, %d together", alone, together)
	}
}

// The corrected values are those of the method's definition: p times the number of tests by its rank, and never less than of a smaller p.
func TestCorrection(t *testing.T) {
	apart := func(n int) Pair {
		p := Pair{Less: true}
		for i := range 6 {
			p.Old, p.New = append(p.Old, float64(2*i)), append(p.New, float64(2*i+1+2*n))
		}
		return p
	}
	pairs := []Pair{apart(0), apart(6), apart(2), {Old: []float64{1}, New: []float64{2}}}
	got := Test{Alpha: 0.05}.Compare(pairs)
	for i, want := range []float64{got[0].P, got[1].P * 3, min(got[0].P, got[2].P*3/2), 1} {
		if math.Abs(got[i].Q-want) > 1e-12 {
			t.Errorf("pair %d: p %v gives %v, want %v", i, got[i].P, got[i].Q, want)
		}
	}
	if got[1].P > 0.01 || got[0].P < 0.5 || got[3].Verdict != TooFew {
		t.Errorf("%+v", got)
	}
}

// A verdict that the number of rounds does not allow is not given as "no difference".
func TestTooFew(t *testing.T) {
	p := []Pair{{[]float64{1, 2, 3}, []float64{11, 12, 13}, true}}
	if c := (Test{Alpha: 0.05}).Compare(p)[0]; c.Verdict != TooFew {
		t.Errorf("three samples each: %+v", c)
	}
	if c := (Test{Alpha: 0.2}).Compare(p)[0]; c.Verdict != Worse || math.Abs(c.P-0.1) > 1e-9 {
		t.Errorf("at 20 %%: %+v", c)
	}
	if p := SmallestP(0, 3); p != 1 {
		t.Errorf("nothing against three: %v", p)
	}
}

// A sure difference below the threshold does not matter.
func TestThreshold(t *testing.T) {
	p := Pair{Less: true}
	for i := range 20 {
		p.Old, p.New = append(p.Old, 100+float64(i)/100), append(p.New, 102+float64(i)/100)
	}
	for threshold, want := range map[float64]Verdict{0: Worse, 0.01: Worse, 0.05: NoDifference} {
		if c := (Test{Alpha: 0.05, Threshold: threshold}).Compare([]Pair{p})[0]; c.Verdict != want || c.P > 1e-6 {
			t.Errorf("threshold %v: %+v, want %s", threshold, c, want)
		}
	}
	for _, bad := range []Test{{}, {Alpha: 1}, {Alpha: math.NaN()}, {Alpha: 0.05, Threshold: -1}, {Alpha: 0.05, Threshold: math.NaN()}} {
		if bad.Check() == nil {
			t.Errorf("%+v is a test", bad)
		}
	}
}
