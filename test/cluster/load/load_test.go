// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// Load that a server answers has no failure. Each answer that a server withholds, and each connection that it closes, is counted.
func TestCounts(t *testing.T) {
	var broken atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "name")
	}))
	defer server.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	go func() {
		for buf := make([]byte, 100); ; {
			n, peer, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if !broken.Load() {
				_, _ = udp.WriteTo(buf[:n], peer)
			}
		}
	}()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	start := func() *Run {
		return Start(dial, Options{Long: 2, New: 20, Datagrams: 2},
			Target{Name: "tcp", Network: "tcp", Address: server.Listener.Addr().String()},
			Target{Name: "udp", Network: "udp", Address: udp.LocalAddr().String(), Dial: dial})
	}
	run := start()
	time.Sleep(500 * time.Millisecond)
	good := run.Stop()
	if good.Failed() != 0 || good["long tcp"].OK == 0 || good["long tcp"].Opened != 2 || good["new tcp"].OK == 0 || good["datagrams udp"].OK == 0 {
		t.Errorf("a server that answers:\n%s", good)
	}
	run = start()
	time.Sleep(300 * time.Millisecond)
	broken.Store(true)
	time.Sleep(1500 * time.Millisecond)
	bad := run.Stop()
	for _, name := range []string{"long tcp", "new tcp", "datagrams udp"} {
		if c := bad[name]; c.OK == 0 || c.Failed == 0 || len(c.Errors) == 0 {
			t.Errorf("a server that stops answering: %s: %+v", name, c)
		}
	}
	if bad["long tcp"].Opened <= 2 {
		t.Error("connections that were closed are not opened again")
	}
}
