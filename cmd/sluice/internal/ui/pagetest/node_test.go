// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/chromium"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

var printed = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`)

// The command, on a node with pods: the page shows them, their host port, limit, rule, connections and drops, and counts on.
func TestPrivilegedPageOfANode(t *testing.T) {
	w := e2etest.NewWorld(t, netlab.Options{ForwardIPv4: true})
	rt := w.Runtime(e2etest.Network{
		Subnets: []string{"10.1.0.0/16"}, Plugins: []string{"portmap", "firewall", "bandwidth"},
		Firewall:  e2etest.Attributes{"rules": e2etest.Attributes{"egress": []e2etest.Attributes{{"action": "deny", "cidrs": []string{"203.0.113.0/24"}}}}},
		Bandwidth: e2etest.BandwidthLimits("ingress", 80_000_000, 8_000_000),
	})
	web := w.AddPod(rt, "webserver0001", e2etest.TCP(8080, 80))
	client := w.AddPod(rt, "podclient0001")
	stop, err := web.ServeHTTP(e2etest.At(web.IP4, 80), http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, strings.Repeat("x", 64<<10)) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	for _, dial := range []func() (net.Conn, error){ // open while we look
		func() (net.Conn, error) { return w.Client().DialContext(t.Context(), "tcp", "192.0.2.1:8080") },
		func() (net.Conn, error) { return client.DialContext(t.Context(), "tcp", e2etest.At(web.IP4, 80)) },
	} {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	dropped := refused(t, client)
	tool := w.Start(e2etest.Programs.Path("sluice"), "ui", "--listen", "127.0.0.1:0", "--interval", "300ms")
	url := ""
	for late := time.Now().Add(netlab.Patient(30 * time.Second)); url == "" && time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
		url = printed.FindString(tool.Out.String())
	}
	if url == "" {
		t.Fatalf("no URL in %q", tool.Out)
	}
	p := open(t, chromium.StartT(t, w.Node.NS), url, light)
	for view, wants := range map[string][]string{
		"overview": {"ebpf in force", "webserver000", "8080", "Map pressure"}, "pods": {"webserver000", "podclient000", web.IP4.String(), "80.0\u00a0Mbit/s", "policy"},
		"connections": {"hostport", "plain", "192.0.2.1:8080", "established"}, "talk": {"tcp 8080", "webserver000", "192.0.2.2"},
		"drops": {"egress-rule"}, "hostports": {"8080", web.IP4.String() + ":80", "webserver000"},
		"rules": {"203.0.113.0/24", "deny", "80.0\u00a0Mbit/s"}, "maps": {"sl_endpoints", "sl_ct"}, "doctor": {"kernel", "datapath"},
	} {
		p.show(view)
		for _, want := range wants {
			p.await("document.body.innerText.includes(" + quoted(want) + ") || document.querySelector('svg.talk')?.textContent.includes(" + quoted(want) + ")")
		}
	}
	p.show("talk") // both pods have an entry of their connection, which counts once
	p.await(`[...document.querySelectorAll('tbody tr')].some((r) => r.cells[0].innerText.startsWith('podclient000') &&
		r.cells[2].innerText.startsWith('webserver000') && r.cells[3].innerText === '1')`)
	p.show("overview") // traffic becomes a rate
	go func() {
		for range 200 {
			if r, err := w.Client().HTTPClient(10 * time.Second).Get("http://192.0.2.1:8080/"); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
			}
		}
	}()
	p.await(`/[1-9].*[kMG]bit/.test(document.querySelector('.tile .tile-value').innerText)`)
	dropped()
	p.await(`/[1-9]/.test([...document.querySelectorAll('.tile')].find((e) => e.innerText.includes('Drops')).querySelector('.tile-value').innerText)`)
	p.wantQuiet()
	tool.Signal(unix.SIGTERM)
	p.await("document.querySelector('[role=alert]')?.innerText.includes('does not answer')")
}

// refused sends a datagram that the pod's rules deny, and returns what sends many more.
func refused(t *testing.T, pod *e2etest.Pod) (more func()) {
	t.Helper()
	c, err := pod.DialContext(t.Context(), "udp", "203.0.113.9:9")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	send := func(n int) {
		for range n {
			_, _ = c.Write([]byte("x"))
		}
	}
	send(3)
	return func() { send(500) }
}
