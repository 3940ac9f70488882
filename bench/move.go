// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// oneMove is what the figure of mover is kept under, beside the peers'.
const oneMove = "one move"

// mover times what no plugin can do without that gives a pod a device of the node: one netlink message that moves it, and
// nothing else.
type mover struct {
	lab       *netlab.Lab
	node, pod side
	settle    time.Duration
}

// side is a namespace and a connection into it.
type side struct {
	ns *netns.NS
	h  *rtnl.Handle
}

func newMover(i interfacePlugin) (_ *mover, err error) {
	m := &mover{settle: i.settle}
	if m.lab, err = netlab.New(netlab.Options{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	pod, err := m.lab.Node.NewPod("pod")
	if err != nil {
		return nil, err
	}
	return m, m.lab.Node.Do(func() error {
		if _, err := netlab.Run("ip", strings.Fields(i.before)...); err != nil {
			return err
		}
		for path, s := range map[string]*side{"/proc/thread-self/ns/net": &m.node, pod.Path: &m.pod} {
			var err error
			if s.ns, err = netns.Open(path); err != nil {
				return err
			}
			if s.h, err = rtnl.NewIn(s.ns); err != nil {
				return err
			}
		}
		return nil
	})
}

func (m *mover) close() error {
	for _, s := range []side{m.node, m.pod} {
		if s.h != nil {
			s.h.Close()
		}
		if s.ns != nil {
			s.ns.Close()
		}
	}
	return m.lab.Close()
}

// once moves the device there, which is timed, and back.
func (m *mover) once(name string) (time.Duration, error) {
	took, err := move(m.node, m.pod, name)
	time.Sleep(m.settle)
	if err == nil {
		_, err = move(m.pod, m.node, name)
		time.Sleep(m.settle)
	}
	return took, err
}

func move(from, to side, name string) (time.Duration, error) {
	l, err := from.h.LinkByName(name)
	if err != nil {
		return 0, err
	}
	fd := to.ns.Fd()
	start := time.Now()
	err = from.h.SetLink(l.Index, rtnl.LinkChange{NetNS: &fd})
	return time.Since(start), err
}

// writeMove says what a move alone takes, and what that leaves of the goal.
func (a *adds) writeMove(w io.Writer, i interfacePlugin) error {
	key := func(peer string) report.Key {
		return report.Key{Scenario: i.name, Peer: peer, Pods: 1, Metric: report.Add.Name}
	}
	alone, ok := a.run.Median(key(oneMove))
	if !ok {
		return nil
	}
	text := fmt.Sprintf("%s: the kernel's move of the device alone, one netlink message, took %.1f ms (median, timed in between)", i.name, alone)
	if reference, ok := a.run.Median(key(subject.Reference)); ok {
		text += fmt.Sprintf(": %.2fx the reference's ADD, which moves twice", alone/reference)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", text)
	return err
}
