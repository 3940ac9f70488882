// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"context"
	"maps"
	"os/exec"
	"slices"
	"time"

	"github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/cilium/api/v1/observer"
	"github.com/cilium/cilium/api/v1/peer"
	"github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/hubbleflow"
)

const (
	// maxAnswer is how many flows an answer from the table has. More are counted as lost.
	maxAnswer = 8192
	// readTime bounds a reading of the table.
	readTime = 30 * time.Second
	// peersEvery is how often a call of Notify looks for other nodes.
	peersEvery = 5 * time.Second
)

// request is a GetFlowsRequest, checked.
type request struct {
	*observer.GetFlowsRequest
	white, black []match
	mask         mask
}

func newRequest(in *observer.GetFlowsRequest) (r request, err error) {
	r.GetFlowsRequest = in
	switch {
	case in.GetFirst() && in.GetFollow():
		return r, status.Error(codes.InvalidArgument, "first: not with follow")
	case in.GetExtensions() != nil:
		return r, status.Error(codes.InvalidArgument, "extensions: not supported")
	}
	if r.white, err = newMatches("whitelist", in.GetWhitelist()); err != nil {
		return r, err
	}
	// A list of DNS names leaves no flow out: none has one. In the other list it is an error, for nothing would be shown.
	if r.black, err = newMatches("blacklist", in.GetBlacklist(), "source_fqdn", "destination_fqdn"); err != nil {
		return r, err
	}
	fields := in.GetFieldMask()
	if fields == nil {
		fields = in.GetExperimental().GetFieldMask() //nolint:staticcheck // deprecated, and what published clients send
	}
	r.mask, err = newMask(fields.GetPaths())
	return r, err
}

// wants applies the filters.
func (r *request) wants(f *flow.Flow) bool {
	is := func(m match) bool { return m(f) }
	return (len(r.white) == 0 || slices.ContainsFunc(r.white, is)) && !slices.ContainsFunc(r.black, is)
}

// in says that a time is between since and until.
func (r *request) in(t time.Time) bool {
	return (r.GetSince() == nil || !t.Before(r.GetSince().AsTime())) && (r.GetUntil() == nil || !t.After(r.GetUntil().AsTime()))
}

// GetFlows answers from the table, and from recent events while a client follows. With follow it goes on with what happens.
func (s *Server) GetFlows(in *observer.GetFlowsRequest, to grpc.ServerStreamingServer[observer.GetFlowsResponse]) error {
	r, err := newRequest(in)
	if err != nil {
		return err
	}
	if !in.GetFollow() {
		return s.past(to.Context(), &r, nil, to.Send)
	}
	leave, ok := s.stay()
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "%d clients follow already", maxFollow)
	}
	defer leave()
	c := s.hub.join()
	defer s.hub.leave(c)
	if in.GetNumber() > 0 || in.GetSince() != nil {
		if err := s.past(to.Context(), &r, c, to.Send); err != nil {
			return err
		}
	}
	return s.live(to.Context(), &r, c, to.Send)
}

// live sends what happens until the client goes, or until the time that it has named.
func (s *Server) live(ctx context.Context, r *request, c *client, send func(*observer.GetFlowsResponse) error) error {
	var late <-chan time.Time
	if until := r.GetUntil(); until != nil {
		timer := time.NewTimer(time.Until(until.AsTime()))
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-late:
			return nil
		case e := <-c.events:
			if n := c.lost.Swap(0); n > 0 {
				if err := send(s.lost(n)); err != nil {
					return err
				}
			}
			if out := s.response(r, &e); out != nil && (e.Event == flowevent.Lost || r.in(e.Time)) {
				if err := send(out); err != nil {
					return err
				}
			}
		}
	}
}

// lost says that a client did not take events in time, or asked for more than an answer has.
func (s *Server) lost(n uint64) *observer.GetFlowsResponse {
	return &observer.GetFlowsResponse{NodeName: s.Node, Time: timestamppb.Now(), ResponseTypes: &observer.GetFlowsResponse_LostEvents{
		LostEvents: &flow.LostEvent{Source: flow.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: n},
	}}
}

// response is nil for a flow that the client does not want.
func (s *Server) response(r *request, e *flowevent.Event) *observer.GetFlowsResponse {
	out := &observer.GetFlowsResponse{NodeName: s.Node, Time: timestamppb.New(e.Time)}
	if lost := hubbleflow.Lost(e); lost != nil {
		out.ResponseTypes = &observer.GetFlowsResponse_LostEvents{LostEvents: lost}
		return out
	}
	f := hubbleflow.Flow(e, s.Node, s.Names)
	if !r.wants(f) {
		return nil
	}
	r.mask.apply(f)
	out.ResponseTypes = &observer.GetFlowsResponse_Flow{Flow: f}
	return out
}

// past sends the connections in the table and the recent events, in the order of their time, as many as are asked for. The client of a call that
// follows gets what waits for it here, and not once more.
func (s *Server) past(ctx context.Context, r *request, c *client, send func(*observer.GetFlowsResponse) error) error {
	number := r.GetNumber()
	if number == 0 || number > maxAnswer {
		number = maxAnswer
	}
	found, more, err := s.find(ctx, r, c, int(number))
	if err != nil {
		return err
	}
	if more > 0 && (r.GetNumber() == 0 || r.GetNumber() > maxAnswer) {
		if err := send(s.lost(more)); err != nil {
			return err
		}
	}
	for i := range found {
		if out := s.response(r, &found[i]); out != nil {
			if err := send(out); err != nil {
				return err
			}
		}
	}
	return nil
}

// find returns the newest of what is wanted, or the oldest if the client asks for the first, and how many more there were.
func (s *Server) find(ctx context.Context, r *request, c *client, number int) (found []flowevent.Event, more uint64, err error) {
	byTime := func(a, b flowevent.Event) int { return a.Time.Compare(b.Time) }
	if r.GetFirst() {
		byTime = func(a, b flowevent.Event) int { return b.Time.Compare(a.Time) }
	}
	cut := func() { // the last ones stay
		slices.SortStableFunc(found, byTime)
		if n := len(found) - number; n > 0 {
			found = slices.Delete(found, 0, n)
			more += uint64(n)
		}
	}
	take := func(e flowevent.Event) bool {
		if e.Event != flowevent.Lost && r.in(e.Time) && r.wants(hubbleflow.Flow(&e, s.Node, s.Names)) {
			if found = append(found, e); len(found) >= 2*number+64 {
				cut()
			}
		}
		return true
	}
	if err := s.table(ctx, take); err != nil {
		return nil, 0, err
	}
	for _, e := range s.hub.kept(c) {
		take(e)
	}
	cut()
	if r.GetFirst() {
		slices.Reverse(found)
	}
	return found, more, nil
}

// table calls f for each connection in the table.
func (s *Server) table(ctx context.Context, f func(flowevent.Event) bool) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	defer s.use(ctx)()
	if err := readLines(ctx, exec.CommandContext(ctx, s.Program, "observe", "-o", "json", "--all"), f); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// GetNodes names this node. Relay asks each node, and adds the answers.
func (s *Server) GetNodes(context.Context, *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	kept, seen, _ := s.hub.count()
	n := &observer.Node{
		Name: s.Node, Version: s.Version, Address: s.Address, State: relay.NodeState_NODE_CONNECTED, Tls: &observer.TLS{Enabled: s.Address != ""},
		UptimeNs: s.uptime(), NumFlows: kept, MaxFlows: recent, SeenFlows: seen,
	}
	if n.Address == "" {
		n.Address = "unix://" + s.Socket
	}
	return &observer.GetNodesResponse{Nodes: []*observer.Node{n}}, nil
}

func (s *Server) uptime() uint64 { return uint64(time.Since(s.started)) }

// GetNamespaces names those of the pods that have connections.
func (s *Server) GetNamespaces(ctx context.Context, _ *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error) {
	seen := map[string]bool{}
	note := func(e flowevent.Event) bool {
		if f := hubbleflow.Flow(&e, s.Node, s.Names); f != nil {
			seen[f.GetSource().GetNamespace()], seen[f.GetDestination().GetNamespace()] = true, true
		}
		return true
	}
	if err := s.table(ctx, note); err != nil {
		return nil, err
	}
	for _, e := range s.hub.kept(nil) {
		note(e)
	}
	delete(seen, "")
	out := &observer.GetNamespacesResponse{}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		out.Namespaces = append(out.Namespaces, &observer.Namespace{Namespace: name})
	}
	return out, nil
}

// ServerStatus counts the events that are kept while a client follows.
func (s *Server) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	kept, seen, rate := s.hub.count()
	return &observer.ServerStatusResponse{
		NumFlows: kept, MaxFlows: recent, SeenFlows: seen, UptimeNs: s.uptime(), Version: s.Version, FlowsRate: rate,
		NumConnectedNodes: wrapperspb.UInt32(1), NumUnavailableNodes: wrapperspb.UInt32(0),
	}, nil
}

// Notify tells of the nodes with this server, and of those that come and go.
func (s *Server) Notify(_ *peer.NotifyRequest, to grpc.ServerStreamingServer[peer.ChangeNotification]) error {
	leave, ok := s.stay()
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "%d clients follow already", maxFollow)
	}
	defer leave()
	told := map[string]string{}
	tick := time.NewTicker(peersEvery)
	defer tick.Stop()
	for {
		for _, n := range changes(told, s.Peers(), s.Address != "") {
			if err := to.Send(n); err != nil {
				return err
			}
		}
		select {
		case <-to.Context().Done():
			return status.FromContextError(to.Context().Err()).Err()
		case <-tick.C:
		}
	}
}

// changes compares the nodes with what was told, and notes what it returns there.
func changes(told map[string]string, now []Peer, secure bool) (out []*peer.ChangeNotification) {
	left := maps.Clone(told)
	note := func(name, address string, kind peer.ChangeNotificationType) {
		n := &peer.ChangeNotification{Name: name, Address: address, Type: kind}
		if secure {
			n.Tls = &peer.TLS{ServerName: ServerName(name)}
		}
		out = append(out, n)
	}
	for _, p := range now {
		was, known := told[p.Name]
		delete(left, p.Name)
		switch {
		case !known:
			note(p.Name, p.Address, peer.ChangeNotificationType_PEER_ADDED)
		case was != p.Address:
			note(p.Name, p.Address, peer.ChangeNotificationType_PEER_UPDATED)
		}
		told[p.Name] = p.Address
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		note(name, left[name], peer.ChangeNotificationType_PEER_DELETED)
		delete(told, name)
	}
	return out
}
