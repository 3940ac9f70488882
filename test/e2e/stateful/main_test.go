// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"flag"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// worldsAtOnce is how many worlds run side by side: they wait for most of their time.
const worldsAtOnce = "24"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", worldsAtOnce); err != nil {
			panic(err)
		}
	}
	e2etest.Main(m)
}
