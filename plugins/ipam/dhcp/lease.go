// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/sluice-cni/sluice/pkg/log"
)

// retries says how patiently an address is sought.
type retries struct {
	// max is the longest wait between two tries, total the time after which none
	// is made any more.
	max, total time.Duration
}

const (
	// fastTries are made every fastWait, the others after ever longer waits; all
	// are spread by jitter, since the pods of a rebooted node start at once.
	fastTries = 4
	fastWait  = 2 * time.Second
	slowWait  = 4 * time.Second
	jitter    = time.Second
	// minRenewWait is the shortest time between two tries to renew (RFC 2131 4.4.5).
	minRenewWait = time.Minute
	// renewPace is the shortest time between two renewals, whatever the server says.
	renewPace = time.Second
)

// errNoMoreTries has upstream's words, which its users look for.
var errNoMoreTries = errors.New("no more tries")

// lease is one attachment's lease and the goroutine that keeps it.
type lease struct {
	id      string
	ex      exchange
	retries retries
	log     *log.Logger
	// saved is called with each new ACK, ended when the lease is lost.
	saved func(ack *dhcpv4.DHCPv4, at time.Time)
	ended func(*lease)

	// ready is closed when the first address is there, or err says why not.
	ready  chan struct{}
	err    error
	lost   bool // the interface is down for it
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	ack *dhcpv4.DHCPv4
	at  time.Time // when ack came
}

// start runs the lease until stop. With an ACK (of before the daemon's restart)
// it goes on from there.
func (l *lease) start(ack *dhcpv4.DHCPv4, at time.Time) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.ready, l.done = make(chan struct{}), make(chan struct{})
	if ack != nil {
		if at.After(time.Now()) {
			// The clock was set back since, so the age of the lease is unknown: it
			// is renewed now.
			at = at.Add(-time.Until(timesOf(ack, at).renew))
		}
		l.ack, l.at = ack, at
		close(l.ready)
	}
	go func() {
		defer close(l.done)
		if ack == nil && !l.first(ctx) {
			return
		}
		if err := l.keep(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("lease lost", log.Error(err))
			l.lost = !errors.Is(err, errGone)
			l.ended(l)
		}
	}()
}

// stop ends the goroutine; the lease at the server stays.
func (l *lease) stop() {
	l.cancel()
	<-l.done
}

func (l *lease) current() *dhcpv4.DHCPv4 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ack
}

func (l *lease) set(ack *dhcpv4.DHCPv4) {
	l.mu.Lock()
	l.ack, l.at = ack, time.Now()
	l.mu.Unlock()
	l.saved(ack, l.at)
}

// first gets the first address.
func (l *lease) first(ctx context.Context) bool {
	defer close(l.ready)
	ack, err := l.seek(ctx)
	if err == nil {
		if _, err = resultOf(ack, 0); err != nil {
			err = errors.Join(err, l.ex.release(ack)) // DEL finds no lease
		}
	}
	if err != nil {
		l.err = err
		l.ended(l)
		return false
	}
	l.set(ack)
	return true
}

// seek tries until there is an address, the time is up or the interface is gone.
func (l *lease) seek(ctx context.Context) (*dhcpv4.DHCPv4, error) {
	end := time.Now().Add(l.retries.total)
	slow := slowWait
	for try := 1; ; try++ {
		ack, err := l.ex.acquire(ctx, nil)
		if err == nil || errors.Is(err, errGone) || ctx.Err() != nil {
			return ack, err
		}
		wait := fastWait
		if try > fastTries {
			wait = slow
			slow = min(2*slow, l.retries.max)
		}
		wait += time.Duration(rand.Int64N(int64(2*jitter))) - jitter // spreads load, hides nothing
		if time.Now().Add(wait).After(end) {
			return nil, fmt.Errorf("%w: %w", errNoMoreTries, err)
		}
		l.log.Info("no address yet", log.Int("try", try), log.Duration("next", wait), log.Error(err))
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// keep renews the lease as long as it can. It returns an error when the address
// is ours no longer: the interface is down then.
func (l *lease) keep(ctx context.Context) error {
	for {
		t := timesOf(l.ack, l.at)
		if err := sleep(ctx, max(time.Until(t.renew), renewPace)); err != nil {
			return err
		}
		ack, err := l.extend(ctx, t)
		if err == nil {
			l.set(ack)
			continue
		}
		if ctx.Err() != nil || errors.Is(err, errGone) {
			return err
		}
		return errors.Join(err, l.ex.down())
	}
}

// extend gets the lease extended before it expires: from its server until T2,
// then from any, and at last as a new lease of the same address.
func (l *lease) extend(ctx context.Context, t times) (*dhcpv4.DHCPv4, error) {
	for {
		rebind := !time.Now().Before(t.rebind)
		ack, err := l.ex.renew(ctx, l.ack, rebind)
		if err == nil && !ack.YourIPAddr.Equal(l.ack.YourIPAddr) {
			err = fmt.Errorf("%w: it extends %s in place of %s", errNak, ack.YourIPAddr, l.ack.YourIPAddr)
		}
		if err == nil || errors.Is(err, errGone) || ctx.Err() != nil {
			return ack, err
		}
		l.log.Info("lease not renewed", log.Bool("rebinding", rebind), log.Error(err))
		if errors.Is(err, errNak) {
			return l.again(ctx)
		}
		limit := t.rebind
		if rebind {
			if ack, err := l.again(ctx); err == nil || errors.Is(err, errGone) {
				return ack, err
			}
			limit = t.expire
		}
		left := time.Until(limit)
		if left <= 0 && rebind {
			return nil, fmt.Errorf("it expired: %w", err)
		}
		if err := sleep(ctx, min(max(left/2, minRenewWait), left)); err != nil {
			return nil, err
		}
	}
}

// again asks for the address as a new lease. Another address is of no use: the
// pod has been configured, and told its peers, the old one.
func (l *lease) again(ctx context.Context) (*dhcpv4.DHCPv4, error) {
	ack, err := l.ex.acquire(ctx, l.ack.YourIPAddr)
	if err != nil {
		return nil, err
	}
	if !ack.YourIPAddr.Equal(l.ack.YourIPAddr) {
		err := fmt.Errorf("the server gives %s in place of %s", ack.YourIPAddr, l.ack.YourIPAddr)
		return nil, errors.Join(err, l.ex.release(ack))
	}
	return ack, nil
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
