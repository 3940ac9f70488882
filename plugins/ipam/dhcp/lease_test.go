// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/sluice-cni/sluice/pkg/log"
)

// script is an exchange whose servers answer as the test says; it notes when
// it was used, in seconds from the start.
type script struct {
	t     *testing.T
	begin time.Time
	mu    sync.Mutex
	log   []string
	// acquireAs and renewAs answer the next calls; nil is "no answer".
	acquireAs func(wanted net.IP) (*dhcpv4.DHCPv4, error)
	renewAs   func(rebind bool) (*dhcpv4.DHCPv4, error)
}

var errSilent = errors.New("no answer")

func (s *script) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%.0f ", time.Since(s.begin).Seconds())+fmt.Sprintf(format, args...))
}

func (s *script) notes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log, "\n")
}

func (s *script) acquire(_ context.Context, wanted net.IP) (*dhcpv4.DHCPv4, error) {
	s.note("acquire %v", wanted)
	if s.acquireAs == nil {
		return nil, errSilent
	}
	return s.acquireAs(wanted)
}

func (s *script) renew(_ context.Context, _ *dhcpv4.DHCPv4, rebind bool) (*dhcpv4.DHCPv4, error) {
	s.note("renew rebind=%v", rebind)
	if s.renewAs == nil {
		return nil, errSilent
	}
	return s.renewAs(rebind)
}

func (s *script) release(ack *dhcpv4.DHCPv4) error { s.note("release %v", ack.YourIPAddr); return nil }
func (s *script) down() error                      { s.note("down"); return nil }

// run starts a lease of 1000 seconds that is there already, runs it for d of
// the bubble's time and returns whether it ended by itself.
func (s *script) run(d time.Duration) (ended bool) {
	s.begin = time.Now()
	l := s.lease()
	l.ended = func(*lease) { ended = true }
	l.start(ackOf(s.t, dhcpv4.WithLeaseTime(1000)), s.begin)
	time.Sleep(d)
	synctest.Wait()
	l.stop()
	return ended
}

func (s *script) lease() *lease {
	return &lease{
		id: "x", ex: s, log: log.NewNop(), retries: retries{max: 62 * time.Second, total: 208 * time.Second},
		saved: func(*dhcpv4.DHCPv4, time.Time) { s.note("saved") }, ended: func(*lease) {},
	}
}

func TestLeaseLife(t *testing.T) {
	t.Parallel()
	good := func(t *testing.T) *dhcpv4.DHCPv4 { return ackOf(t, dhcpv4.WithLeaseTime(1000)) }
	tests := []struct {
		name  string
		set   func(*testing.T, *script)
		run   time.Duration
		ended bool
		want  []string
	}{
		{"renewed at T1, and again", func(t *testing.T, s *script) {
			s.renewAs = func(bool) (*dhcpv4.DHCPv4, error) { return good(t), nil }
		}, 1100 * time.Second, false, []string{"500 renew rebind=false", "500 saved", "1000 renew rebind=false", "1000 saved"}},
		{"another server at T2", func(t *testing.T, s *script) {
			s.renewAs = func(rebind bool) (*dhcpv4.DHCPv4, error) {
				if rebind {
					return good(t), nil
				}
				return nil, errSilent
			}
		}, 1000 * time.Second, false, []string{"500 renew rebind=false", "675 renew rebind=false", "762 renew rebind=false", "822 renew rebind=false", "850 renew rebind=true", "850 saved"}},
		{"a renewal of another address", func(t *testing.T, s *script) {
			s.renewAs = func(bool) (*dhcpv4.DHCPv4, error) { return ackOf(t, dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 99))), nil }
			s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) { return ackOf(t, dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 99))), nil }
		}, 600 * time.Second, true, []string{"500 renew rebind=false", "500 acquire 10.1.2.3", "500 release 10.1.2.99", "500 down"}},
		{"the same address as a new lease", func(t *testing.T, s *script) {
			s.renewAs = func(rebind bool) (*dhcpv4.DHCPv4, error) { return nil, errNak }
			s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) { return good(t), nil }
		}, 600 * time.Second, false, []string{"500 renew rebind=false", "500 acquire 10.1.2.3", "500 saved"}},
		{"the same address, the network's mask is another one", func(t *testing.T, s *script) {
			s.renewAs = func(rebind bool) (*dhcpv4.DHCPv4, error) { return nil, errNak }
			s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) {
				return ackOf(t, dhcpv4.WithLeaseTime(1000), dhcpv4.WithNetmask(net.CIDRMask(23, 32))), nil
			}
		}, 600 * time.Second, false, []string{"500 renew rebind=false", "500 acquire 10.1.2.3", "500 saved"}},
		{"refused, and another address", func(t *testing.T, s *script) {
			s.renewAs = func(rebind bool) (*dhcpv4.DHCPv4, error) { return nil, errNak }
			s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) {
				return ackOf(t, dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 99))), nil
			}
		}, 2000 * time.Second, true, []string{"500 renew rebind=false", "500 acquire 10.1.2.3", "500 release 10.1.2.99", "500 down"}},
		{"nobody answers", func(*testing.T, *script) {}, 2000 * time.Second, true, []string{
			"500 renew rebind=false", "675 renew rebind=false", "762 renew rebind=false", "822 renew rebind=false",
			"850 renew rebind=true", "850 acquire 10.1.2.3", "925 renew rebind=true", "925 acquire 10.1.2.3",
			"985 renew rebind=true", "985 acquire 10.1.2.3", "1000 renew rebind=true", "1000 acquire 10.1.2.3", "1000 down",
		}},
		{"the pod has gone", func(_ *testing.T, s *script) {
			s.renewAs = func(bool) (*dhcpv4.DHCPv4, error) { return nil, errGone }
		}, 2000 * time.Second, true, []string{"500 renew rebind=false"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{t: t}
				tc.set(t, s)
				if ended := s.run(tc.run); ended != tc.ended {
					t.Errorf("ended by itself: %v, want %v", ended, tc.ended)
				}
				if d := cmp.Diff(strings.Join(tc.want, "\n"), s.notes()); d != "" {
					t.Errorf("events (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestFirstAddress(t *testing.T) {
	t.Parallel()
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{t: t, begin: time.Now()}
			tries := 0
			s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) {
				if tries++; tries < 4 {
					return nil, errSilent
				}
				return ackOf(t), nil
			}
			l := s.lease()
			l.start(nil, time.Time{})
			<-l.ready
			if l.err != nil || l.current() == nil || tries != 4 {
				t.Errorf("after %d tries: %v", tries, l.err)
			}
			if took := time.Since(s.begin); took < 3*time.Second || took > 9*time.Second {
				t.Errorf("four fast tries took %v", took)
			}
			l.stop()
		})
	})
	t.Run("never", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{t: t, begin: time.Now()}
			l := s.lease()
			var ended bool
			l.ended = func(*lease) { ended = true }
			l.start(nil, time.Time{})
			<-l.ready
			if !errors.Is(l.err, errNoMoreTries) || !ended {
				t.Errorf("error %v, ended %v", l.err, ended)
			}
			if took := time.Since(s.begin); took < 140*time.Second || took > 208*time.Second {
				t.Errorf("gave up after %v", took)
			}
			l.stop()
		})
	})
	t.Run("stopped while seeking", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{t: t, begin: time.Now()}
			l := s.lease()
			l.start(nil, time.Time{})
			time.Sleep(time.Second)
			l.stop()
			<-l.ready
			if !errors.Is(l.err, context.Canceled) {
				t.Errorf("error %v", l.err)
			}
		})
	})
	t.Run("no mask", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{t: t, begin: time.Now()}
			s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) {
				return ackOf(t, dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask)), nil
			}
			l := s.lease()
			l.start(nil, time.Time{})
			<-l.ready
			if l.err == nil || !strings.Contains(l.err.Error(), "subnet mask") {
				t.Errorf("error %v", l.err)
			}
			l.stop()
		})
	})
}

// "infinite" of dnsmasq and others is 0xffffffff seconds (RFC 2131 section 3.3), and comes without T1 and T2.
func TestLongLeases(t *testing.T) {
	t.Parallel()
	for _, secs := range []uint32{0xffffffff, 5 * 365 * 86400} {
		ack := ackOf(t)
		ack.Options.Update(dhcpv4.OptGeneric(dhcpv4.OptionIPAddressLeaseTime, binary.BigEndian.AppendUint32(nil, secs)))
		from := time.Now()
		if tm := timesOf(ack, from); !tm.renew.After(from) || !tm.rebind.After(tm.renew) || !tm.expire.After(tm.rebind) {
			t.Errorf("lease of %d s: renew after %v, rebind after %v, expire after %v", secs, tm.renew.Sub(from), tm.rebind.Sub(from), tm.expire.Sub(from))
		}
	}
}

// An ACK that is of no use: the server still holds the address for us, and the DEL after the failed ADD finds no lease.
func TestUselessAckIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t, begin: time.Now()}
		s.acquireAs = func(net.IP) (*dhcpv4.DHCPv4, error) {
			return ackOf(t, dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask)), nil
		}
		l := s.lease()
		l.start(nil, time.Time{})
		<-l.ready
		l.stop()
		if l.err == nil || !strings.Contains(s.notes(), "release") {
			t.Errorf("%v; the lease is never given back: %s", l.err, s.notes())
		}
	})
}

// A lease of no time at all is not asked for without a pause.
func TestLeaseOfNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := &script{t: t}
		s.renewAs = func(bool) (*dhcpv4.DHCPv4, error) {
			if asked++; asked > 1000 {
				return nil, errGone
			}
			return ackOf(t, dhcpv4.WithLeaseTime(0)), nil
		}
		if ended := s.run(510 * time.Second); ended || asked < 2 {
			t.Errorf("asked %d times in ten seconds", asked)
		}
	})
}

// The clock was set back while no daemon ran: a lease that seems to begin in the future may be nearly over.
func TestLeaseFromTheFuture(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t, begin: time.Now()}
		s.renewAs = func(bool) (*dhcpv4.DHCPv4, error) { return ackOf(t, dhcpv4.WithLeaseTime(1000)), nil }
		l := s.lease()
		l.start(ackOf(t, dhcpv4.WithLeaseTime(1000)), s.begin.Add(10*time.Hour))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		l.stop()
		if !strings.Contains(s.notes(), "saved") {
			t.Errorf("not renewed: %s", s.notes())
		}
	})
}
