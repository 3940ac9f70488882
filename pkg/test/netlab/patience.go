// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	stdflag "flag"
	"os"
	"strconv"
	"testing"
	"time"
)

// EnvPatience names the variable with the factor by which tests wait longer, a
// decimal number of at least 1. An emulated machine sets it.
const EnvPatience = "SLUICE_TEST_PATIENCE"

// Patient returns how long to wait for something that takes d at most on an
// ordinary machine: d times what EnvPatience says. It is for deadlines by which
// something must have happened, not for times in which nothing may happen.
func Patient(d time.Duration) time.Duration { return time.Duration(float64(d) * patience()) }

// Fewer returns how much of something to do where an ordinary machine does n:
// less by the same factor, and at least least, which -short asks for. It is for
// amounts that a test chose to be large. A part of it shows the same.
func Fewer(n, least int) int {
	if short() {
		return min(n, least)
	}
	return max(int(float64(n)/patience()), min(n, least))
}

// Turn reports whether the case number i of many that are alike is tested: with
// -short a third of them.
func Turn(i int) bool { return !short() || i%3 == 0 }

// short is false in programs that are no tests, and before a test's flags are read.
func short() bool { return testing.Testing() && stdflag.Parsed() && testing.Short() }

func patience() float64 {
	factor, err := strconv.ParseFloat(os.Getenv(EnvPatience), 64)
	if err != nil || factor < 1 {
		return 1
	}
	return factor
}

// EnvNIC names the variable with the hardware address of a network card that
// tests may do with as they like. Only a machine made for tests sets it.
const EnvNIC = "SLUICE_TEST_NIC"
