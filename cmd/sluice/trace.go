// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/trace"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// statusError is an error that ends the tool with a status of its own.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// Exit statuses of "trace".
const (
	exitDropped    = 1
	exitNotFollows = 2 // the question is wrong, or the packet cannot be followed
)

// traceView is what "trace -o json" prints.
type traceView struct {
	*trace.Result
	Summary string    `json:"summary"`
	Live    *liveView `json:"live,omitempty"`
}

// traceOptions are the flags of "trace".
type traceOptions struct {
	protocol, source, via string
	port, fromPort        uint16
	wait                  time.Duration
}

// clientPort is the port of a sender who names none: one of those that programs get from the kernel.
const clientPort = 49152

func newTrace(a *app) *cobra.Command {
	var o traceOptions
	c := &cobra.Command{
		Use:   "trace FROM TO",
		Short: "Say what becomes of a packet, and where it would be dropped",
		Long: `Follow the first packet of a connection, and its answer, through the node: the
programs, routing, sysctls, neighbours and netfilter chains. The last line says
where the packet goes, or where it is dropped and what to do.

FROM and TO are pods (an address, NAMESPACE/NAME, the beginning of a container
ID, or network/ID/interface), "node", or an address outside. Nothing is sent: a copy of
the programs runs with a copy of the maps, and the kernel's tables are asked. The
node does not change. Rules of netfilter and programs of others cannot be asked.
They are named, and the last line says "if".

With --wait, it then watches for that long what happens to the next real packet
of the kind, also in nftables where a rule traces it ("meta nftrace set 1"). It
sends none itself, and adds no rule.

Exit status: 0 delivered or sent, 1 dropped, 2 the packet cannot be followed.`,
		Example: `  sluice trace 3f1c 192.0.2.7 --port 443
  sluice trace shop/cart-0 kube-system/coredns-5dd5 --protocol udp --port 53
  sluice trace 198.51.100.9 node --port 8080 --via eth0
  sluice trace 10.1.0.2 fd00:1::3 --protocol icmp -o json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return statusError{fmt.Errorf("trace needs FROM and TO: %q is an example", "sluice trace 10.1.0.2 192.0.2.7 --port 443"), exitNotFollows}
			}
			return nil
		},
		ValidArgsFunction: a.completePods(2, "node"),
		RunE: func(c *cobra.Command, args []string) error {
			q, err := o.question(args)
			if err == nil {
				err = a.trace(c.Context(), q, o.wait)
			}
			var exit exitError
			if err == nil || errors.As(err, &exit) || errors.Is(err, errSaid) {
				return err
			}
			return statusError{err, exitNotFollows}
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return statusError{err, exitNotFollows} })
	choiceFlag(c, &o.protocol, "protocol", "`protocol` of the packet", []string{"tcp", "udp", "icmp"}, "tcp")
	c.Flags().Uint16Var(&o.port, "port", 0, "`port` that it is for, of tcp and udp")
	c.Flags().Uint16Var(&o.fromPort, "from-port", clientPort, "`port` that it is from; of icmp, the identifier")
	c.Flags().StringVar(&o.source, "source", "", "source `address` of the packet, if it is not the sender's own")
	c.Flags().StringVar(&o.via, "via", "", "`device` that a packet from outside comes in by")
	c.Flags().DurationVar(&o.wait, "wait", 0, "then watch for this `time` what happens to a real packet")
	return c
}

func (o traceOptions) question(args []string) (q trace.Question, err error) {
	q = trace.Question{From: args[0], To: args[1], Proto: ipproto.Number(o.protocol), Port: o.port, FromPort: o.fromPort, Via: o.via}
	switch {
	case o.protocol == "icmp" && o.port != 0:
		return q, fmt.Errorf("--port %d: icmp has no ports", o.port)
	case o.protocol != "icmp" && o.port == 0:
		return q, fmt.Errorf("--port: which port of %s? --port 443, for example", o.protocol)
	case o.fromPort == 0:
		return q, errors.New("--from-port 0: must be 1 or more")
	case o.wait < 0:
		return q, fmt.Errorf("--wait %s: must not be negative", o.wait)
	}
	q.Source, err = optionalAddr("--source", o.source)
	return q, err
}

func (a *app) trace(ctx context.Context, q trace.Question, wait time.Duration) error {
	dropped := false
	err := a.withDatapath(ctx, func(dp loader.Interface) error {
		records, err := a.node.Records()
		if err != nil {
			fmt.Fprintf(quiet{a, a.err}, "sluice: some attachment records cannot be read: %s\n", visible(err.Error()))
		}
		q.Records = records
		q.Named = func(id attachments.ID, text string) bool {
			o := ownerView{Network: id.Network, ContainerID: id.ContainerID, IfName: id.IfName}
			o.Namespace, o.Pod = a.node.PodName(id)
			return o.isCalled(text)
		}
		r, err := trace.Trace(ctx, dp, q)
		if err != nil {
			return a.whatToDo(err)
		}
		v := traceView{Result: r, Summary: r.Line()}
		dropped = r.Dropped()
		if a.output == outputTable {
			if err := a.traceScreen(v); err != nil {
				return err
			}
		}
		if wait > 0 {
			if v.Live, err = a.live(ctx, dp, r, wait); err != nil {
				return err
			}
			dropped = dropped || v.Live.isDropped()
		}
		return a.print(v, func() error {
			if v.Live == nil {
				return nil
			}
			return a.liveScreen(v.Live)
		})
	}, func() error { return errors.New(notLoaded + " A trace needs one.") })
	if err == nil && dropped {
		return exitError(exitDropped)
	}
	return err
}

// whatToDo adds to an error of the kernel what it means.
func (a *app) whatToDo(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("a trace loads a copy of the programs, run it as root: %w", err)
	}
	return err
}

// traceScreen prints the steps in their order, and the line that counts last.
func (a *app) traceScreen(v traceView) error {
	errs := []error{a.traceSteps("packet", &v.Path)}
	if v.Answer != nil {
		errs = append(errs, a.say(""), a.traceSteps("answer", v.Answer))
	}
	paint := a.colours.green
	switch {
	case v.Result.Dropped():
		paint = a.colours.red
	case len(v.NotRehearsed) > 0:
		paint = a.colours.yellow
	}
	return errors.Join(append(errs, a.say(""), a.say("%s", paint(visible(v.Summary))))...)
}

func (a *app) traceSteps(name string, p *trace.Path) error {
	if err := a.say("%s", a.colours.bold(name+": ")+visible(p.Packet)); err != nil {
		return err
	}
	paint := map[string]func(string) string{
		trace.Stopped: a.colours.red, trace.NotAsked: a.colours.yellow, trace.Rewritten: a.colours.green, trace.Redirected: a.colours.green,
	}
	last := p.Packet
	for _, s := range p.Steps {
		colour := paint[s.Result]
		if colour == nil {
			colour = a.colours.plain
		}
		text := fmt.Sprintf("%s: %s", s.At, s.Text)
		if s.Packet != last {
			text += "; now " + s.Packet
		}
		last = s.Packet
		if err := a.field(strings.ReplaceAll(s.Result, "_rehearsed", " run"), text, colour); err != nil {
			return err
		}
	}
	return nil
}

// note says on stderr what goes on, to people.
func (a *app) note(format string, args ...any) error {
	if a.output == outputJSON {
		return nil
	}
	_, err := fmt.Fprintf(quiet{a, a.err}, "%s\n", visible(fmt.Sprintf(format, args...)))
	return err
}
