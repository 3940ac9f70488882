// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/servertest"
)

// start serves on a free port of the loopback.
func start(t *testing.T, address string, c Checks) string {
	t.Helper()
	s, err := New(address, c)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, s.Run)
	return s.Address()
}

func get(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// Many who ask at once cause one look.
func TestReadyz(t *testing.T) {
	t.Parallel()
	var looks atomic.Int32
	var bad atomic.Bool
	bad.Store(true)
	addr := start(t, "127.0.0.1:0", Checks{
		Ready: func(ctx context.Context) []string {
			looks.Add(1)
			if ctx.Err() != nil {
				return []string{ctx.Err().Error()}
			}
			if bad.Load() {
				return []string{"network: missing", "STATUS: no"}
			}
			return nil
		},
		Metrics: func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, "x 1\n"); return err },
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if code, body := get(t, http.MethodGet, "http://"+addr+"/readyz"); code != 503 || body != "network: missing\nSTATUS: no\n" {
				t.Errorf("%d, %q", code, body)
			}
		})
	}
	wg.Wait()
	if n := looks.Load(); n != 1 {
		t.Errorf("%d looks", n)
	}
	for path, want := range map[string]int{"/healthz": 200, "/metrics": 200, "/": 404, "/debug/pprof/": 404} {
		if code, _ := get(t, http.MethodGet, "http://"+addr+path); code != want {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := get(t, http.MethodPost, "http://"+addr+"/healthz"); code != 405 {
		t.Errorf("POST: %d", code)
	}
	bad.Store(false)
	time.Sleep(fresh + 100*time.Millisecond)
	if code, body := get(t, http.MethodGet, "http://"+addr+"/readyz"); code != 200 || body != "ok\n" {
		t.Errorf("%d, %q", code, body)
	}
}

// Clients that say nothing, and clients that wait for a look, do not delay a probe. Long heads are refused.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) { t.Parallel(); silentClients(t, address) })
	}
}

func silentClients(t *testing.T, address string) {
	looking := make(chan struct{})
	defer close(looking)
	addr := start(t, address, Checks{
		Ready:   func(context.Context) []string { <-looking; return nil },
		Metrics: func(context.Context, io.Writer) error { return errors.New("none") },
	})
	client := http.Client{Timeout: time.Second} // kubelet gives a probe five
	for _, says := range []string{"", "GET /healthz HT", "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"} {
		for range 500 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, says) // the server may have closed it
		}
		r, err := client.Get("http://" + addr + "/healthz")
		if err != nil {
			t.Fatalf("behind clients that say %q: %v", says, err)
		}
		r.Body.Close()
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X", strings.Repeat("x", 4*maxHead))
	if r, err := client.Do(req); err == nil {
		if r.Body.Close(); r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a long head: %d", r.StatusCode)
		}
	}
	if code, _ := get(t, http.MethodGet, "http://"+addr+"/metrics"); code != 500 {
		t.Errorf("metrics that fail: %d", code)
	}
}

func TestAddressTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := New(l.Addr().String(), Checks{}); err == nil || !strings.Contains(err.Error(), "health.address") {
		t.Errorf("%v", err)
	}
}
