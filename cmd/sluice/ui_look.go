// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

const (
	// uiMaxFlows bounds the connections that a look keeps, and with them the memory of the page's server: about 60 MB.
	uiMaxFlows = 200_000
	uiRows     = 200
	uiMaxRows  = 1000
)

// uiNodeView is what the page's /api/node answers. Its parts are those that the commands print with "-o json".
type uiNodeView struct {
	Taken       time.Time         `json:"taken"`
	Host        string            `json:"host"`
	Failed      []string          `json:"failed"` // what could not be read
	Status      statusView        `json:"status"`
	Endpoints   []endpointView    `json:"endpoints"`
	HostPorts   []hostPortView    `json:"hostports"`
	Limits      []limitView       `json:"limits"`
	Policies    []policyView      `json:"policies"`
	Drops       []dropCountView   `json:"drops"`
	NATPools    []natPoolView     `json:"nat_pools"`
	NATPorts    int               `json:"nat_ports"` // toward one destination, by one address and protocol
	Connections uiConnectionsView `json:"connections"`
	Talk        uiTalkView        `json:"talk"`
}

// uiConnectionsView counts connections.
type uiConnectionsView struct {
	Total  int            `json:"total"`
	Fast   int            `json:"fast"` // both directions may take the fast path
	States map[string]int `json:"states"`
	Kinds  map[string]int `json:"kinds"`
}

// uiFlowsView is what /api/connections answers: the first rows of those that match, in the order asked for.
type uiFlowsView struct {
	Total   int        `json:"total"`
	Left    int        `json:"left_out"` // not looked through: there are too many
	Matched int        `json:"matched"`
	Rows    []flowView `json:"rows"`
}

// uiLook is one look at the node.
type uiLook struct {
	node  uiNodeView
	flows []loader.Flow // at most uiMaxFlows
	names owners
}

func (l *uiLook) Node() any { return l.node }

// lookForUI reads the node. What cannot be read beside the datapath is named in the view.
func (a *app) lookForUI(ctx context.Context, names *podNames) (*uiLook, error) {
	l := &uiLook{node: uiNodeView{
		Taken: time.Now(), Failed: []string{}, Endpoints: []endpointView{}, HostPorts: []hostPortView{}, Policies: []policyView{},
		Drops: []dropCountView{}, NATPools: []natPoolView{},
		Connections: uiConnectionsView{States: map[string]int{}, Kinds: map[string]int{}}, Talk: uiTalkView{Edges: []uiTalkEdge{}},
	}}
	l.node.Host, _ = os.Hostname() // a title
	records, err := a.recordsForStatus()
	l.failed(err)
	l.names = ownersOf(records)
	names.name(l.names)
	var limits []loader.RateLimitStatus
	err = a.withDatapath(ctx, func(dp loader.Interface) (err error) {
		limits, err = l.read(ctx, a, dp, records)
		return err
	}, func() (err error) {
		l.node.Status, err = a.status(ctx, nil, records)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.failed(l.node.Status.missed)
	l.node.Limits = limitViews(records, l.names, limits, ownerFilter{}) // token buckets need no datapath
	return l, nil
}

func (l *uiLook) failed(err error) {
	if err != nil {
		l.node.Failed = append(l.node.Failed, err.Error())
	}
}

// read fills in what the datapath knows.
func (l *uiLook) read(ctx context.Context, a *app, dp loader.Interface, records []*attachments.Record) (limits []loader.RateLimitStatus, err error) {
	v := &l.node
	if v.Status, err = a.status(ctx, dp, records); err != nil {
		return nil, err
	}
	endpoints, err := dp.Endpoints(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints: %w", err)
	}
	ports, err := dp.HostPorts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the published ports: %w", err)
	}
	policies, err := dp.Policies(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the policies: %w", err)
	}
	if v.Drops, err = dropViews(ctx, dp, func() owners { return l.names }, "", false); err != nil {
		return nil, err
	}
	if limits, err = dp.RateLimits(ctx); err != nil {
		return nil, fmt.Errorf("read the limits: %w", err)
	}
	v.Endpoints, v.HostPorts = endpointViews(endpoints, l.names, ownerFilter{}), hostPortViews(ports, l.names, ownerFilter{})
	v.Policies = policyViews(policies, l.names)
	if v.Status.Config != nil {
		v.NATPorts = portsIn(v.Status.Config.SNATPorts)
	}
	talk := newUITalk(endpoints, v.Status.HostAddresses, ports)
	v.NATPools, err = natPools(func(yield func(loader.Flow, error) bool) { // one walk for all
		for f, err := range dp.Flows(ctx, loader.FlowFilter{}) {
			if err == nil {
				l.count(f)
				talk.add(f)
			}
			if !yield(f, err) {
				return
			}
		}
	}, v.NATPorts)
	v.Talk = talk.view()
	return limits, err
}

func (l *uiLook) count(f loader.Flow) {
	c := &l.node.Connections
	c.Total++
	c.States[f.State]++
	c.Kinds[f.Kind]++
	if f.Fast {
		c.Fast++
	}
	if len(l.flows) < uiMaxFlows {
		l.flows = append(l.flows, f)
	}
}

// Connections answers the page's table. Its keys are those of "conntrack list", and q: words that must all be in the row.
func (l *uiLook) Connections(query url.Values) (any, error) {
	f := flowFilter{sort: flowSorts[0]}
	rows := uiRows
	for key, values := range query {
		value := values[len(values)-1]
		switch key {
		case "proto", "kind", "state", "sort":
			to, allowed := f.choice(key)
			if value == "" {
				continue
			}
			if !slices.Contains(allowed, value) {
				return nil, fmt.Errorf("%s %q: must be %s", key, value, orList(allowed))
			}
			*to = value
		case "limit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > uiMaxRows {
				return nil, fmt.Errorf("limit %q: must be a number from 1 to %d", value, uiMaxRows)
			}
			rows = n
		case "q":
		default:
			return nil, fmt.Errorf("%q: unknown key", key)
		}
	}
	words := strings.Fields(strings.ToLower(query.Get("q")))
	v := uiFlowsView{Total: l.node.Connections.Total, Left: l.node.Connections.Total - len(l.flows), Rows: []flowView{}}
	var found []*flowView // pointers are sorted faster
	for _, flow := range l.flows {
		row := flowViewOf(flow, l.names)
		if f.matches(row) && row.has(words) {
			found = append(found, &row)
		}
	}
	v.Matched = len(found)
	slices.SortFunc(found, func(x, y *flowView) int { return f.compare(*x, *y) })
	for _, row := range found[:min(rows, len(found))] {
		v.Rows = append(v.Rows, *row)
	}
	return v, nil
}

// choice is the field of a key with fixed values, and those.
func (f *flowFilter) choice(key string) (to *string, allowed []string) {
	switch key {
	case "proto":
		return &f.proto, flowProtos
	case "kind":
		return &f.kind, flowKinds
	case "state":
		return &f.state, flowStates
	}
	return &f.sort, flowSorts
}

// has reports whether each word is part of the row.
func (v flowView) has(words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.ToLower(strings.Join([]string{
		v.Proto, v.Pod.String(), v.Remote.String(), v.Outside.String(), v.State, v.Kind, v.Owner.ID, v.Owner.Network, v.Owner.ContainerID, v.Owner.IfName,
		v.Owner.Namespace + "/" + v.Owner.Pod,
	}, " "))
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}
