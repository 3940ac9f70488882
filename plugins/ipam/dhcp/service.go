// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/log"
)

// service is the daemon's table of leases.
type service struct {
	o   Options
	log *log.Logger

	mu     sync.Mutex
	leases map[string]*entry
	lost   map[string]*entry // whose lease ended with the interface down
}

// entry is a lease and what it belongs to.
type entry struct {
	*lease
	state state
	port  *port
}

func newService(o Options, logger *log.Logger) *service {
	return &service{o: o, log: logger, leases: map[string]*entry{}, lost: map[string]*entry{}}
}

// methods are the protocol.
func (s *service) methods() map[string]handler {
	return map[string]handler{methodAllocate: s.allocate, methodRelease: s.releaseOne, methodGC: s.gc}
}

// allocate returns the attachment's lease, and gets one first if there is none.
func (s *service) allocate(args *skel.CmdArgs) (any, error) {
	c, err := load(args.StdinData)
	if err != nil {
		return nil, err
	}
	e, err := s.find(args, c)
	if err != nil {
		return nil, err
	}
	<-e.ready
	if e.err != nil {
		return nil, e.err
	}
	return resultOf(e.current(), c.IPAM.Priority)
}

// releaseOne gives the attachment's lease back. One that is not there is no error.
func (s *service) releaseOne(args *skel.CmdArgs) (any, error) {
	c, err := load(args.StdinData)
	if err != nil {
		return nil, err
	}
	return struct{}{}, s.release(clientID(args.ContainerID, c.Name, args.IfName))
}

// gc releases the leases of a network whose attachments are not in the list of
// valid ones.
func (s *service) gc(args *skel.CmdArgs) (any, error) {
	c, err := load(args.StdinData)
	if err != nil {
		return nil, err
	}
	list, err := cniconf.ValidAttachments(args.StdinData)
	if err != nil {
		return nil, err
	}
	valid := map[string]bool{}
	for _, v := range list {
		valid[clientID(v.ContainerID, c.Name, v.IfName)] = true
	}
	var errs []error
	for _, id := range s.ids(func(e *entry) bool { return e.state.Network == c.Name && !valid[e.id] }) {
		errs = append(errs, s.release(id))
	}
	return struct{}{}, errors.Join(errs...)
}

func (s *service) ids(want func(*entry) bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, of := range []map[string]*entry{s.leases, s.lost} {
		for id, e := range of {
			if want(e) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// find returns the attachment's entry, a fresh one if there is none or if it
// belongs to an earlier namespace of that name.
func (s *service) find(args *skel.CmdArgs, c *config) (*entry, error) {
	st := state{
		Version: stateVersion, ContainerID: args.ContainerID, Network: c.Name, IfName: args.IfName,
		NetNS: args.Netns, Args: args.Args, IPAM: c.IPAM,
	}
	e, err := s.entryOf(st)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if old := s.lost[e.id]; old != nil && old.port.inode == e.port.inode {
		s.mu.Unlock() // a new one would take the interface up, and it has the old address
		return nil, errors.New("the lease was lost and the interface is down: the attachment must be made anew")
	}
	old := s.leases[e.id]
	if old != nil && old.port.inode == e.port.inode {
		s.mu.Unlock()
		return old, nil
	}
	s.leases[e.id] = e
	e.start(nil, time.Time{})
	s.mu.Unlock()
	if old != nil {
		old.stop()
	}
	return e, nil
}

// entryOf makes the entry of an attachment, not started.
func (s *service) entryOf(st state) (*entry, error) {
	options, err := (&config{IPAM: st.IPAM}).exchangeOptions(st.Args)
	if err != nil {
		return nil, err
	}
	p, err := newPort(filepath.Join(s.o.HostPrefix, st.NetNS), st.IfName, st.id())
	if err != nil {
		return nil, err
	}
	p.options, p.broadcast, p.timeout = options, s.o.Broadcast, s.o.Timeout
	e := &entry{state: st, port: p}
	if st.Inode == 0 {
		e.state.Inode = p.inode
	} else {
		p.inode = st.Inode // of the namespace the lease was for
	}
	logger := s.log.With(log.String("lease", st.id()))
	e.lease = &lease{
		id: st.id(), ex: p, log: logger,
		retries: retries{max: s.o.ResendMax, total: s.o.ResendTimeout},
		saved: func(ack *dhcpv4.DHCPv4, at time.Time) {
			saved := e.state
			saved.ACK, saved.At = ack.ToBytes(), at
			if err := saved.write(s.o.StateDir); err != nil {
				logger.Error("the lease will not survive a restart of this daemon", log.Error(err))
			}
		},
		ended: func(*lease) { s.drop(e) },
	}
	return e, nil
}

// drop forgets an entry, if the table still holds it. One whose lease was lost is remembered, by the next daemon too.
func (s *service) drop(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[e.id] != e {
		return
	}
	delete(s.leases, e.id)
	if e.lease.lost {
		s.lost[e.id] = e
		saved := e.state
		saved.Lost = true
		if err := saved.write(s.o.StateDir); err != nil {
			s.log.Error("that the lease was lost will not survive a restart of this daemon", log.Error(err))
		}
		return
	}
	if err := removeState(s.o.StateDir, e.id); err != nil {
		s.log.Error("remove a lease's file", log.Error(err))
	}
}

// release takes the entry out of the table first, so that of several calls one
// does the work.
func (s *service) release(id string) error {
	s.mu.Lock()
	e := s.leases[id]
	delete(s.leases, id)
	delete(s.lost, id)
	s.mu.Unlock()
	if e == nil {
		return removeState(s.o.StateDir, id)
	}
	e.stop()
	if ack := e.current(); ack != nil {
		// One that is not sent, the server has back when the lease expires.
		e.log.Info("lease released", log.Stringer("address", ack.YourIPAddr), log.Error(e.ex.release(ack)))
	}
	return removeState(s.o.StateDir, id)
}

// resume goes on with the leases of an earlier daemon.
func (s *service) resume() {
	states, err := readStates(s.o.StateDir)
	if err != nil {
		s.log.Error("leases of the daemon before this one", log.Error(err))
	}
	for _, st := range states {
		if err := s.resumeOne(st); err != nil {
			s.log.Warn("a lease of the daemon before this one is dropped", log.String("lease", st.id()), log.Error(err))
			if err := removeState(s.o.StateDir, st.id()); err != nil {
				s.log.Error("remove a lease's file", log.Error(err))
			}
		}
	}
}

func (s *service) resumeOne(st *state) error {
	e, err := s.entryOf(*st)
	if err != nil {
		return err
	}
	if err := e.port.present(); errors.Is(err, errGone) {
		return err
	}
	if st.Lost {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lost[e.id] = e
		return nil
	}
	ack, err := dhcpv4.FromBytes(st.ACK)
	if err != nil {
		return fmt.Errorf("read the server's message: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[e.id] = e
	e.start(ack, st.At)
	return nil
}

// stop ends all leases' goroutines. Nothing is released: the pods go on.
func (s *service) stop() {
	s.mu.Lock()
	leases := s.leases
	s.leases = map[string]*entry{}
	s.mu.Unlock()
	for _, e := range leases {
		e.cancel() // all at once: each may take as long as an exchange
	}
	for _, e := range leases {
		e.stop()
	}
}
