// SPDX-License-Identifier: Apache-2.0

package nodeconf

import (
	"fmt"

	"github.com/sluice-cni/sluice/pkg/log"
)

// Renamed is a former name in the file, of a key or of a key's value. It still works.
type Renamed struct {
	Key string // the key as it is written, "mapSizes.flows" for one inside another
	Old string // the former name
	New string // the name to write instead
}

// String returns the sentence for the operator.
func (r Renamed) String() string {
	return fmt.Sprintf("%s: %q is a former name, write %q", r.Key, r.Old, r.New)
}

// Warn logs each former name that the file has.
func (c *Config) Warn(l *log.Logger) {
	for _, r := range c.Renamed {
		l.Warn("former name in the node configuration", log.String("key", r.Key), log.String("old", r.Old), log.String("new", r.New))
	}
}

// currentKey returns the name of a key that is given by its former one.
func currentKey(former string) (string, bool) {
	switch former {
	case "admitMark":
		return "firewallMark", true
	case "iptables":
		return "iptablesVariant", true
	}
	return "", false
}

// both is the error for a key that is given by both of its names.
func both(former, current string) error {
	return fmt.Errorf("%q is the former name of %q: give only one of them", former, current)
}
