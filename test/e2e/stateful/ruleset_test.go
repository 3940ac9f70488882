// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// ruleset is what an administrator has set, and what is done with it.
type ruleset struct {
	name string
	// before and after are scripts of the shell with prelude, run before and after the pods come.
	before, after string
	// sysctls of net.netfilter, besides those that are shortened. asShipped shortens none.
	sysctls   map[string]string
	asShipped bool
	conf      string   // of /etc/sluice/config.json, relearnSeconds 1 if empty
	chain     []string // after the first plugin, nil for portmap and firewall
	paths     []string // hostPort and masquerade if none
	idle      time.Duration
	// atOnce run side by side, then one after the other.
	atOnce, then []scenario
	// look is a script whose output is compared at the end: counters, sets.
	look string
	// bites is a pattern of an outcome of upstream's, without which the rules do nothing; refusals if empty.
	bites string
	// slow says that no packet need take the fast path.
	slow bool
}

// noFirewall is a chain without the firewall plugin, whose rules precede an administrator's in the iptables of upstream.
var noFirewall = []string{"portmap"}

// prelude are words of the scripts: what writes both families.
const prelude = `set -e
ipt() { iptables -w 30 "$@"; ip6tables -w 30 "$@"; }
restore() { rules=$(cat); echo "$rules" | iptables-restore -n; echo "$rules" | ip6tables-restore -n; }
`

func run(script string) (string, error) { return netlab.Run("sh", "-ec", script) }

func (r ruleset) rest() time.Duration {
	if r.idle == 0 {
		return 6 * time.Second
	}
	return r.idle
}

// played are the paths of the ruleset's conversations.
func (r ruleset) played() []string {
	if r.paths != nil {
		return r.paths
	}
	return []string{byHostPort, masqueraded}
}

func (r ruleset) uses(path string) bool {
	return slices.Contains(r.played(), path)
}

// trials are the paths, families and protocols of a scenario.
func (r ruleset) trials(sc scenario) (out []trial) {
	protos := sc.protos
	if protos == nil {
		protos = []string{"tcp"}
	}
	for _, path := range r.played() {
		for _, proto := range protos {
			for _, fam := range e2etest.Families() {
				out = append(out, trial{path, proto, fam})
			}
		}
	}
	return out
}
