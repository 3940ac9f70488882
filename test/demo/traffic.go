// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// fetchTime bounds one request. TCP repeats a lost first packet after a second.
const fetchTime = 5 * time.Second

// serve answers HTTP on each address with a line that names the server and the
// source it saw.
func (d *demo) serve(ns *netlab.NS, name string, port uint16, addrs ...netip.Addr) error {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := netip.MustParseAddrPort(r.RemoteAddr).Addr()
		fmt.Fprintf(w, "%s says hello to %s\n", name, from)
	})
	for _, a := range addrs {
		stop, err := ns.ServeHTTP(netip.AddrPortFrom(a, port).String(), h)
		if err != nil {
			return err
		}
		d.stops = append(d.stops, stop)
	}
	return nil
}

// fetch gets a page and wants one answer.
func (d *demo) fetch(ctx context.Context, ns *netlab.NS, who string, to netip.AddrPort, want string) error {
	url := "http://" + to.String() + "/"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	start := time.Now()
	res, err := ns.HTTPClient(fetchTime).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	got := strings.TrimSpace(string(body))
	d.say("%s$ GET %s", who, url)
	d.block(fmt.Sprintf("%s, %.1f ms: %s", res.Status, float64(time.Since(start).Microseconds())/1000, got))
	if got != want {
		return fmt.Errorf("the answer is %q, want %q", got, want)
	}
	return nil
}

func (d *demo) fetchWeb(ctx context.Context) error {
	client := d.lab.Client()
	if err := d.serve(d.web.NS, "web", containerPort, d.web.addr(netip.Addr.Is4), d.web.addr(netip.Addr.Is6)); err != nil {
		return err
	}
	u := client.Uplink
	for _, x := range []struct{ node, client netip.Addr }{
		{netlab.IP4(u.Node), netlab.IP4(u.Client)}, {netlab.IP6(u.Node), netlab.IP6(u.Client)},
	} {
		want := fmt.Sprintf("web says hello to %s", x.client)
		if err := d.fetch(ctx, client.NS, "client", netip.AddrPortFrom(x.node, hostPort), want); err != nil {
			return err
		}
	}
	d.good("port %d of the node reached port %d of the pod, which saw the client's own address", hostPort, containerPort)
	return nil
}

func (d *demo) fetchClient(ctx context.Context) error {
	client := d.lab.Client()
	u := client.Uplink
	if err := d.serve(client.NS, "client", clientPort, netlab.IP4(u.Client), netlab.IP6(u.Client)); err != nil {
		return err
	}
	for _, x := range []struct{ node, client netip.Addr }{
		{netlab.IP4(u.Node), netlab.IP4(u.Client)}, {netlab.IP6(u.Node), netlab.IP6(u.Client)},
	} {
		want := fmt.Sprintf("client says hello to %s", x.node)
		if err := d.fetch(ctx, d.app.NS, "app", netip.AddrPortFrom(x.client, clientPort), want); err != nil {
			return err
		}
	}
	d.good("the client saw the node's address: masqueraded")
	return nil
}
