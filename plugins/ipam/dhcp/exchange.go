// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
)

var (
	// errGone says that the pod's namespace or interface is not there any more.
	errGone = errors.New("the interface has gone")
	// errNak is a server that refuses.
	errNak = errors.New("the server refused (NAK)")
)

// retransmit is the wait before a message is sent again; it doubles (RFC 2131 4.1).
const retransmit = 2 * time.Second

// exchange talks to the servers from one interface. Every method may return
// errGone.
type exchange interface {
	// acquire gets a lease, of the wanted address if the server agrees; nil
	// wants none in particular.
	acquire(ctx context.Context, wanted net.IP) (*dhcpv4.DHCPv4, error)
	// renew extends a lease: asking the server that gave it, or with rebind any
	// server (RFC 2131 4.4.5). errNak when the address is ours no longer.
	renew(ctx context.Context, ack *dhcpv4.DHCPv4, rebind bool) (*dhcpv4.DHCPv4, error)
	// release gives the address back; no server answers that.
	release(ack *dhcpv4.DHCPv4) error
	// down takes the interface down, so that nothing uses an address that
	// belongs to another host.
	down() error
}

// port is an interface in a pod's network namespace. The namespace is opened for
// each exchange: holding it would keep it alive after the pod.
type port struct {
	netns  string
	inode  uint64 // of the namespace; the path may come back with another one
	ifname string
	id     string
	// options of every message.
	options   *exchangeOptions
	broadcast bool
	timeout   time.Duration // of one exchange
}

// newPort fails with errGone when the namespace does not exist.
func newPort(path, ifname, id string) (*port, error) {
	ns, err := netns.Open(path)
	if errors.Is(err, netns.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return &port{netns: path, inode: ns.Inode(), ifname: ifname, id: id}, nil
}

// inside runs f in the namespace with the interface as it is now.
func (p *port) inside(f func(*net.Interface) error) error {
	ns, err := netns.Open(p.netns)
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	if ns.Inode() != p.inode {
		return fmt.Errorf("%w: another namespace is at %s", errGone, p.netns)
	}
	return ns.Do(func() error {
		dev, err := net.InterfaceByName(p.ifname)
		switch {
		case err != nil && missing(p.ifname):
			return fmt.Errorf("%w: %w", errGone, err)
		case err != nil:
			return fmt.Errorf("look for %s: %w", p.ifname, err)
		}
		return f(dev)
	})
}

// present fails with errGone when the interface is not there any more.
func (p *port) present() error { return p.inside(func(*net.Interface) error { return nil }) }

func (p *port) modifiers(more ...dhcpv4.Modifier) []dhcpv4.Modifier {
	m := append(p.options.modifiers(p.id), dhcpv4.WithBroadcast(p.broadcast))
	return append(m, more...)
}

// raw runs f with a client that needs no address: it writes and reads whole
// frames.
func (p *port) raw(ctx context.Context, f func(context.Context, *nclient4.Client) error) error {
	return p.inside(func(dev *net.Interface) error {
		if dev.Flags&net.FlagUp == 0 {
			if err := setUp(p.ifname, true); err != nil {
				return err
			}
		}
		c, err := nclient4.New(p.ifname, nclient4.WithTimeout(retransmit), nclient4.WithRetry(-1))
		if err != nil {
			return fmt.Errorf("open a socket on %s: %w", p.ifname, err)
		}
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		return errors.Join(f(ctx, c), c.Close())
	})
}

func (p *port) acquire(ctx context.Context, wanted net.IP) (ack *dhcpv4.DHCPv4, err error) {
	err = p.raw(ctx, func(ctx context.Context, c *nclient4.Client) error {
		var more []dhcpv4.Modifier
		if wanted != nil {
			more = append(more, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(wanted)))
		}
		offer, err := c.DiscoverOffer(ctx, p.modifiers(more...)...)
		if err != nil {
			return fmt.Errorf("no offer: %w", err)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout) // an exchange of its own
		defer cancel()
		lease, err := c.RequestFromOffer(ctx, offer, p.modifiers()...)
		if err != nil {
			return fmt.Errorf("no lease for the offer of %s: %w", offer.YourIPAddr, err)
		}
		ack = lease.ACK
		return nil
	})
	return ack, err
}

func (p *port) renew(ctx context.Context, ack *dhcpv4.DHCPv4, rebind bool) (*dhcpv4.DHCPv4, error) {
	var answer *dhcpv4.DHCPv4
	ask := func(ctx context.Context, c *nclient4.Client) error {
		// A chained tuning may have changed the hardware address, and the client
		// takes only answers to that of now.
		request, err := dhcpv4.NewRenewFromAck(ack, p.modifiers(dhcpv4.WithHwAddr(c.InterfaceAddr()))...)
		if err != nil {
			return err
		}
		answer, err = c.SendAndRead(ctx, c.RemoteAddr(), request, nclient4.IsMessageType(dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak))
		return err
	}
	var err error
	if rebind {
		err = p.raw(ctx, ask)
	} else {
		err = p.unicast(ctx, ack, ask)
	}
	if err != nil {
		return nil, err
	}
	if answer.MessageType() == dhcpv4.MessageTypeNak {
		return nil, errNak
	}
	return merged(answer, ack), nil
}

// unicast runs f with a client on the leased address, which talks to the server
// that gave it by way of the pod's routes, relays or not.
func (p *port) unicast(ctx context.Context, ack *dhcpv4.DHCPv4, f func(context.Context, *nclient4.Client) error) error {
	return p.inside(func(dev *net.Interface) error {
		conn, err := newRenewalConn(dev, ack.YourIPAddr)
		if err != nil {
			return err
		}
		c, err := nclient4.NewWithConn(conn, dev.HardwareAddr, nclient4.WithTimeout(retransmit), nclient4.WithRetry(-1),
			nclient4.WithServerAddr(&net.UDPAddr{IP: ack.ServerIdentifier(), Port: nclient4.ServerPort}))
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		return errors.Join(f(ctx, c), c.Close())
	})
}

// merged is the answer to a renewal with what it leaves out: some servers repeat
// only what has changed.
func merged(answer, before *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	for code, value := range before.Options {
		if _, ok := answer.Options[code]; !ok {
			answer.Options[code] = value
		}
	}
	return answer
}

// release is sent as a frame of our own making: the interface goes as soon as the
// call returns, too soon for the kernel to find the server's hardware address.
// The source is the leased address: from none, the server's stack drops it.
func (p *port) release(ack *dhcpv4.DHCPv4) error {
	msg, err := dhcpv4.NewReleaseFromACK(ack, dhcpv4.WithOption(dhcpv4.OptClientIdentifier(p.sentIdentifier())))
	if err != nil {
		return err
	}
	return p.inside(func(dev *net.Interface) error {
		frames, err := packet.Listen(dev, packet.Datagram, unix.ETH_P_IP, nil)
		if err != nil {
			return fmt.Errorf("open a socket on %s: %w", p.ifname, err)
		}
		conn := nclient4.NewBroadcastUDPConn(frames, &net.UDPAddr{IP: ack.YourIPAddr, Port: nclient4.ClientPort})
		_, err = conn.WriteTo(msg.ToBytes(), &net.UDPAddr{IP: ack.ServerIdentifier(), Port: nclient4.ServerPort})
		return errors.Join(err, conn.Close())
	})
}

// sentIdentifier is the client identifier that the server knows: the last one
// provided, if any.
func (p *port) sentIdentifier() []byte {
	for _, o := range slices.Backward(p.options.provide) {
		if o.Code.Code() == dhcpv4.OptionClientIdentifier.Code() {
			return o.Value.ToBytes()
		}
	}
	return clientIdentifier(p.id)
}

// missing reports that there is no such interface, rather than that the kernel did
// not say: net.InterfaceByName has one kind of error for both.
func missing(ifname string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(ifname)
	return err != nil || errors.Is(unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req), unix.ENODEV)
}

func (p *port) down() error {
	return p.inside(func(*net.Interface) error { return setUp(p.ifname, false) })
}

// setUp changes IFF_UP of an interface of the thread's namespace (netdevice(7)).
func setUp(ifname string, up bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(ifname)
	if err != nil {
		return fmt.Errorf("interface name %q: %w", ifname, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("read flags of %s: %w", ifname, err)
	}
	flags := req.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	req.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set flags of %s: %w", ifname, err)
	}
	return nil
}
