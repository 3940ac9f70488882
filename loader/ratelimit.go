// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// RateLimit is a limit by departure times on what leaves a device with an fq qdisc, which the caller has put there. Rate and Burst
// are in bytes, of frames. At most one of Shaped and Unshaped is set.
type RateLimit struct {
	Ref    attachments.ID
	Egress bool // what the pod sends, on its own device; else what it gets, on the host end
	// Police makes it a limit, with Egress, on what arrives at the host veth, or with Netns at the parent of the pod's device: a
	// second one of what the pod sends, which the pod cannot bypass. It drops what a limit of the same rate and burst on the pod's
	// own device would not have let through.
	Police bool

	Netns   string // path of the device's namespace; empty: the calling thread's
	Ifindex int    // in that namespace
	IfName  string // for messages

	Rate     uint64
	Burst    uint32
	Shaped   []netip.Prefix // other ends that are limited; none: all
	Unshaped []netip.Prefix // other ends that are not
}

func (s RateLimit) direction() string {
	if s.Police {
		return "egress (policed)"
	}
	if s.Egress {
		return "egress"
	}
	return "ingress"
}

// How long packets may wait. What a pod gets has no sender behind it that would feel a queue, so the queue is as long as a token
// bucket's; what it sends is held by its own sockets, and the horizon only stops those that do not listen.
const (
	queueTime     = 25 * time.Millisecond
	queueBytes    = 32 << 10 // at low rates: a few frames, however long that takes
	egressHorizon = time.Second
	// fq drops what is to leave later than in 10 s, and says so to no caller of ours.
	maxHorizon = 9 * time.Second
	// How long a packet may be late: fq's timer, or a CPU that is busy elsewhere.
	lateness = 100 * time.Millisecond
	// The longest GSO packet of a device with default sizes.
	maxGSO = 64 << 10
	// Flows that overtake the queue have this part of the rate for themselves (SL_EDT_ALL_SPARSE_SHARE).
	sparseShare = 4
)

// since returns how long n bytes take at the shape's rate.
func (s RateLimit) since(n uint64) time.Duration {
	return time.Duration(float64(n) / float64(s.Rate) * float64(time.Second))
}

// slack is by how much the departures of a limit can be ahead of its rate and burst, as the policer sees them. A packet leaves whole
// when its time begins, and others overtake it while that lasts. A queue is at most as long as the horizon and one packet: what
// sparse flows send past a full one is paid for, but its turn has not come.
func (s RateLimit) slack() time.Duration {
	return lateness + s.since(maxGSO) + (s.horizon()+s.since(maxGSO))/sparseShare
}

func (s RateLimit) queue() time.Duration { return min(max(queueTime, s.since(queueBytes)), maxHorizon) }

func (s RateLimit) horizon() time.Duration {
	if !s.Egress {
		return s.queue()
	}
	return min(max(egressHorizon, 2*s.queue()), maxHorizon)
}

func (s RateLimit) limit() *edt.Limit {
	l := &edt.Limit{
		Owner: s.Ref.Owner(), Rate: s.Rate, Burst: uint64(s.since(uint64(s.Burst))),
		Mark: uint64(s.queue() / 2), Horizon: uint64(s.horizon()),
	}
	if s.Egress {
		l.Flags |= edt.FlagEgress
	}
	if s.Police {
		l.Flags |= edt.FlagPolice
		l.Burst += uint64(s.slack())
		l.Mark, l.Horizon = 0, 0 // nothing waits
	}
	switch {
	case len(s.Shaped) > 0:
		l.Flags |= edt.FlagListed
	case len(s.Unshaped) > 0:
		l.Flags |= edt.FlagUnlisted
	}
	return l
}

func (s RateLimit) nets() []netip.Prefix {
	if len(s.Shaped) > 0 {
		return s.Shaped
	}
	return s.Unshaped
}

func (s RateLimit) validate() error {
	if s.Ref.ContainerID == "" || s.Ifindex <= 0 || s.Rate == 0 {
		return fmt.Errorf("limit of %s without container, device or rate", s.Ref)
	}
	if s.Police && !s.Egress {
		return fmt.Errorf("limit of %s: a policer is of what the pod sends", s.Ref)
	}
	return nil
}

// hook is where the program of the limit goes.
func (s RateLimit) hook() hook.Hook {
	if s.Police {
		return hook.EDTPolice()
	}
	return hook.EDT()
}

// limitMaps are the views of the maps about limits.
type limitMaps struct {
	limits edt.Limits
	nets   edt.Nets
}

func (d *Datapath) limitMaps() (limitMaps, error) {
	limits, err := d.tree.Pinned(pintree.MapEDTLimits)
	if err != nil {
		return limitMaps{}, err
	}
	nets, err := d.tree.Pinned(pintree.MapEDTCIDRs)
	return limitMaps{edt.NewLimits(limits), edt.NewNets(nets)}, err
}

// SetRateLimit puts a limit on a device. One of the same owner and direction is replaced. On error nothing of it is left; the error
// wraps ErrFull when a map has no room, ErrConflict where the device has no place for the program, and ErrNoDevice for a policer of a
// device whose parent cannot hold one.
func (d *Datapath) SetRateLimit(ctx context.Context, s RateLimit) (err error) {
	if err := s.validate(); err != nil {
		return err
	}
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.limitMaps()
	if err != nil {
		return err
	}
	owner, which := s.Ref.Owner(), s.limit().Flags&limitKind
	if err := d.dropLimits(m, owner, nil, which); err != nil {
		return err
	}
	number, err := d.freeLimitNumber(m)
	if err != nil {
		return err
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close() // after the rollback, which detaches
	var back rollback.Stack
	defer back.Rollback(ctx, &err)
	back.Push("limit", func(context.Context) error { return d.releaseLimit(m, number, s.nets()) })
	if err := pintree.LinkOwner(d.tree.Paths.EDT(), owner, which, number); err != nil {
		return fmt.Errorf("note limit %d: %w", number, err)
	}
	if err := m.limits.Put(number, s.limit()); err != nil {
		return pintree.WrapFull(pintree.MapEDTLimits, err)
	}
	for _, p := range s.nets() {
		if err := m.nets.Put(number, p); err != nil {
			return pintree.WrapFull(pintree.MapEDTCIDRs, err)
		}
	}
	if s.atParent() {
		return d.guardLimit(a, s, number, &back)
	}
	return d.attachLimit(s, number)
}

func (d *Datapath) attachLimit(s RateLimit, number uint32) error {
	place := attach.Place{Ifindex: s.Ifindex, Netns: s.Netns}
	if s.Netns != "" {
		ns, err := netns.Open(s.Netns)
		if err != nil {
			return err
		}
		place.Inode = ns.Inode()
		ns.Close()
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	entered := false
	err := a.In(place, func(conn *attach.Conn) (err error) {
		entered = true
		if place.Made, err = conn.AddClsact(place.Ifindex); err != nil {
			return err
		}
		if err := os.Symlink(place.String(), d.tree.Paths.EDTMark(number)); err != nil {
			return fmt.Errorf("note limit %d: %w", number, err)
		}
		return a.PutPlacedFilters(conn, place.Ifindex, number, []hook.Hook{s.hook()})
	})
	if err == nil && !entered {
		err = fmt.Errorf("%w: %s in %s", ErrNoDevice, s.IfName, s.Netns)
	}
	return err
}

// PodByLink reports whether the programs of a host end hang, or will hang, by a link, of tcx or netkit. They then run before every filter,
// the policer's (RateLimit.Police) too, and the fast path goes round it: such a pod needs FeatureQueueTx.
func (d *Datapath) PodByLink(ifindex int) bool {
	if d.tree.Config.Attach == hook.HowTCX || pintree.Exists(d.tree.Paths.LinkPin(ifindex, hook.FromPod())) {
		return true
	}
	h, err := rtnl.New()
	if err != nil {
		return false
	}
	defer h.Close()
	l, err := h.LinkByIndex(ifindex)
	return err == nil && l.Kind == rtnl.KindNetkit
}

// RemoveRateLimit takes every limit of owner away. nets are the networks that they are for or not for; nil means not known, and makes
// RemoveRateLimit read the networks of all limits. Missing is success, and so is a device or a namespace that has gone.
func (d *Datapath) RemoveRateLimit(ctx context.Context, owner uint64, nets []netip.Prefix) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.limitMaps, func(m limitMaps) error {
		return d.dropLimits(m, owner, nets, limitKinds()...)
	})
}

func (d *Datapath) dropLimits(m limitMaps, owner uint64, nets []netip.Prefix, kinds ...uint32) error {
	mine, err := d.limitsOf(m, owner, kinds...)
	if err != nil {
		return err
	}
	var errs []error
	for number := range mine {
		errs = append(errs, d.releaseLimit(m, number, nets))
	}
	return errors.Join(errs...)
}

// limitPlace reads where a limit is; false when nothing is known of it.
func (d *Datapath) limitPlace(number uint32) (attach.Place, bool, error) {
	return attach.ReadPlace(d.tree.Paths.EDTMark(number))
}

// limitOwner returns the owner of a limit; 0 when that has gone.
func (d *Datapath) limitOwner(number uint32) uint64 {
	m, err := d.limitMaps()
	if err != nil {
		return 0
	}
	l, _, _ := m.limits.Get(number)
	return l.Owner
}

// releaseLimit removes all there is of a limit; the note of its place goes last. nets are its networks, nil: not known.
func (d *Datapath) releaseLimit(m limitMaps, number uint32, nets []netip.Prefix) error {
	placed, err := d.detachLimit(number)
	if err != nil {
		return err
	}
	l, known, err := m.limits.Get(number)
	if err != nil {
		return fmt.Errorf("limit %d: %w", number, err)
	}
	if !placed { // a limit at a parent device has no place of its own
		if err := d.unguardLimit(l, number); err != nil {
			return err
		}
	}
	err = m.limits.Delete(number)
	switch {
	case known && l.Flags&(edt.FlagListed|edt.FlagUnlisted) == 0: // it has no networks
	case nets == nil:
		err = errors.Join(err, m.nets.Clear(number))
	default:
		err = errors.Join(err, m.nets.Delete(number, nets))
	}
	return errors.Join(err, pintree.UnlinkOwner(d.tree.Paths.EDT(), l.Owner, l.Flags&limitKind, number), pintree.RemovePin(d.tree.Paths.EDTMark(number)))
}

// detachLimit removes the program of a limit from its place. It reports whether the limit has one.
func (d *Datapath) detachLimit(number uint32) (placed bool, err error) {
	place, ok, err := d.limitPlace(number)
	if err != nil || !ok {
		return false, err
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return true, a.In(place, func(conn *attach.Conn) error {
		for _, h := range hook.OfEDT() { // the note does not say which, the filter's class does
			if err := conn.DeletePlacedFilter(place.Ifindex, h, number); err != nil {
				return err
			}
		}
		if place.Made && conn.Unused(place.Ifindex) {
			return conn.DeleteClsact(place.Ifindex)
		}
		return nil
	})
}

// replaceLimits puts the attacher's program in place of the older one on every limited device.
func (d *Datapath) replaceLimits(a *attach.Attacher) error {
	numbers, err := d.limitNumbers()
	if err != nil {
		return err
	}
	for _, n := range numbers {
		place, ok, err := d.limitPlace(n)
		if err == nil && ok {
			err = a.In(place, func(conn *attach.Conn) error {
				for _, h := range hook.OfEDT() {
					f, found, err := conn.FilterAt(place.Ifindex, h)
					if err == nil && found && f.Class == n { // else it went with its device, or it is the other hook's
						err = a.PutPlacedFilters(conn, place.Ifindex, n, []hook.Hook{h})
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err != nil && !rtnl.TCGone(err) {
			return fmt.Errorf("limit %d: %w", n, err)
		}
	}
	return nil
}

// limitNumbers are those of limits that have a note of their place.
func (d *Datapath) limitNumbers() ([]uint32, error) {
	marks, err := pintree.Names(d.tree.Paths.EDT())
	var out []uint32
	for _, name := range marks {
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, "dev"), 10, 32); err == nil {
			out = append(out, uint32(n))
		}
	}
	return out, err
}

// detachLimits removes the programs, for Unload.
func (d *Datapath) detachLimits() error {
	numbers, err := d.limitNumbers()
	errs := []error{err}
	for _, n := range numbers {
		_, err := d.detachLimit(n)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// collectLimits releases the limits whose owner is not valid, and notes without a limit.
func (d *Datapath) collectLimits(valid func(uint64) bool) error {
	m, err := d.limitMaps()
	if err != nil {
		return err
	}
	all, err := m.limits.All()
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	var errs []error
	for number, l := range all {
		if !valid(l.Owner) {
			errs = append(errs, d.releaseLimit(m, number, nil))
		}
	}
	numbers, err := d.limitNumbers()
	errs = append(errs, err)
	for _, n := range numbers {
		if _, ok := all[n]; !ok {
			errs = append(errs, d.releaseLimit(m, n, nil))
		}
	}
	errs = append(errs, pintree.CollectLinks(d.tree.Paths.EDT(), func(owner uint64, which, number uint32) bool {
		l, ok, err := m.limits.Get(number)
		return err != nil || ok && l.Owner == owner && l.Flags&limitKind == which
	}))
	return errors.Join(errs...)
}

// CheckRateLimit compares what SetRateLimit(s) has made with what is there. It changes nothing. The error wraps ErrDiffers.
func (d *Datapath) CheckRateLimit(_ context.Context, s RateLimit) error {
	m, err := d.limitMaps()
	if err != nil {
		return err
	}
	want := s.limit()
	mine, err := d.limitsOf(m, want.Owner, want.Flags&limitKind)
	if err != nil {
		return err
	}
	for number, l := range mine {
		if l.Rate != want.Rate || l.Burst != want.Burst || l.Flags != want.Flags {
			return pintree.Differs("the %s limit is %d bytes a second with a burst of %v, want %d and %v",
				s.direction(), l.Rate, time.Duration(l.Burst), want.Rate, time.Duration(want.Burst))
		}
		return errors.Join(checkLimitNets(m, number, s), d.checkLimitHook(number, s))
	}
	return pintree.Differs("no %s limit for %s", s.direction(), s.IfName)
}

func checkLimitNets(m limitMaps, number uint32, s RateLimit) error {
	if len(s.nets()) == 0 {
		return nil
	}
	got, err := m.nets.Of(number)
	if err != nil {
		return err
	}
	order := func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) }
	want := slices.Clone(s.nets())
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, slices.Compact(want)) {
		return pintree.Differs("the %s limit has the networks %v, want %v", s.direction(), got, want)
	}
	return nil
}

func (d *Datapath) checkLimitHook(number uint32, s RateLimit) error {
	if s.atParent() {
		return d.checkLimitGuard(number, s)
	}
	place, ok, err := d.limitPlace(number)
	if err != nil {
		return err
	}
	if !ok || place.Ifindex != s.Ifindex || (place.Netns == "") != (s.Netns == "") {
		return pintree.Differs("the %s limit is on device %d of %q, not on %d of %q", s.direction(), place.Ifindex, place.Netns, s.Ifindex, s.Netns)
	}
	place.Netns = s.Netns // a namespace can have several paths: it is compared itself
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	found := false
	err = a.In(place, func(conn *attach.Conn) error {
		f, _, err := conn.FilterAt(place.Ifindex, s.hook())
		found = f.Is(s.hook()) && f.Class == number
		return err
	})
	if err == nil && !found {
		err = pintree.Differs("%s is not attached to the %s of %s", s.hook().Program, s.hook().Direction(), s.IfName)
	}
	return err
}
