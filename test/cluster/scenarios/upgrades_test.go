// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/test/cluster/kube"
)

var (
	upgrades = flag.Int("upgrades", 10, "how many upgrades and downgrades there are")
	revision = flag.String("before", "", "the revision of the repository that is the build before, instead of this one under another version")
)

// Plugins, agents and datapath programs are upgraded and downgraded while requests and pods come and go: no request and no ADD fails.
func TestPrivilegedUpgrades(t *testing.T) {
	s := open(t)
	s.must(s.BuildBefore(t.Context(), *revision))
	before := s.settledState()
	w := underLoad(s)
	pods := startChurn(s)
	loaded := s.builds()
	for n := range *upgrades {
		build := []kube.Plugins{kube.Before, kube.Sluice}[n%2]
		for i := range s.Node {
			s.must(s.upgrade(i, build))
		}
		loaded = s.replaced(loaded)
	}
	for i := range s.Node { // an odd number of them ends with the build before
		s.must(s.upgrade(i, kube.Sluice))
	}
	pods.unharmed(*upgrades / 2)
	w.unharmed()
	w.delete()
	s.nothingLeft(before)
	s.doctor()
}

// upgrade replaces the plugins of a node, by its agent if it has one. The next ADD, or "sluice resync", replaces the programs.
func (s *suite) upgrade(i int, build kube.Plugins) error {
	ctx := s.t.Context()
	if s.Agent == "" {
		if err := s.Install(ctx, i, build); err != nil {
			return err
		}
		return s.Resync(ctx, i, build)
	}
	if err := s.Node[i].StopService(kube.Agent, unix.SIGTERM); err != nil {
		return err
	}
	if err := s.StartAgent(i, build); err != nil {
		return err
	}
	return kube.Poll(ctx, time.Minute, "the agent of "+s.Node[i].Name+" is ready", s.agentReady(i))
}

// replaced waits until each node has other programs than those that it had.
func (s *suite) replaced(had []string) (have []string) {
	s.t.Helper()
	s.until("the programs are replaced", func(context.Context) error {
		have = s.builds()
		for i := range have {
			if have[i] == had[i] {
				return fmt.Errorf("%s still has those of %s", s.Node[i].Name, had[i])
			}
		}
		return nil
	})
	return have
}

// agentReady asks the agent of a node.
func (s *suite) agentReady(i int) func(context.Context) error {
	return func(ctx context.Context) error {
		said, err := s.Node[i].Run(ctx, "curl", "-sS", "--fail-with-body", "http://127.0.0.1:9879/readyz")
		if err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
		return nil
	}
}

// builds names the datapath programs of each node.
func (s *suite) builds() (all []string) {
	s.t.Helper()
	for i := range s.Node {
		out, err := s.Tool(s.t.Context(), i, "status", "-o", "json")
		s.must(err)
		var status struct {
			Build string `json:"build"`
		}
		s.must(json.Unmarshal([]byte(out), &status))
		if status.Build == "" {
			s.t.Fatalf("%s has no programs:\n%s", s.Node[i].Name, out)
		}
		all = append(all, status.Build)
	}
	return all
}
