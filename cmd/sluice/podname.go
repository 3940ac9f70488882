// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/flowevent"
)

// cniResults is where libcni keeps the arguments of each ADD: that of runtimes, and that of Multus.
func cniResults() []string { return []string{"/var/lib/cni/results", "/var/lib/cni/multus/results"} }

// podName reads the name of an attachment's pod, as the runtime gave it to the plugins. It is empty where libcni has not kept it: for
// a runtime without a cache, for what is no pod of Kubernetes, and until the ADD has ended.
func podName(results []string, id attachments.ID) (namespace, name string) {
	for _, dir := range results {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%s", id.Network, id.ContainerID, id.IfName)))
		if err != nil {
			continue
		}
		var kept struct {
			Args [][2]string `json:"cniArgs"`
		}
		if json.Unmarshal(text, &kept) != nil {
			continue
		}
		for _, arg := range kept.Args {
			switch arg[0] {
			case "K8S_POD_NAMESPACE":
				namespace = arg[1]
			case "K8S_POD_NAME":
				name = arg[1]
			}
		}
		if name != "" {
			return namespace, name
		}
	}
	return "", ""
}

// podNames gives attachments the names of their pods. A name never changes, so it is read once.
type podNames struct {
	node  node
	known map[attachments.ID][2]string
}

// name fills in the names, and forgets attachments that have gone.
func (p *podNames) name(all owners) {
	known := make(map[attachments.ID][2]string, len(all))
	for owner, a := range all {
		names, ok := p.known[a.ID]
		if !ok {
			names[0], names[1] = p.node.PodName(a.ID)
		}
		if names[1] != "" {
			known[a.ID] = names
		}
		a.namespace, a.pod = names[0], names[1]
		all[owner] = a
	}
	p.known = known
}

// podFinder finds the pod behind an owner, as events name it.
type podFinder struct {
	owners func() owners
	names  podNames
	last   owners
	read   time.Time
}

func (a *app) pods() *podFinder { return &podFinder{owners: a.owners, names: podNames{node: a.node}} }

// find reads the records again for an owner that they did not name, at most once a second.
func (p *podFinder) find(owner uint64) *flowevent.Pod {
	if _, ok := p.last[owner]; !ok {
		if time.Since(p.read) < ownersAnew {
			return nil
		}
		p.last, p.read = p.owners(), time.Now()
		p.names.name(p.last)
	}
	a, ok := p.last[owner]
	if !ok {
		return nil
	}
	return &flowevent.Pod{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Namespace: a.namespace, Name: a.pod}
}
