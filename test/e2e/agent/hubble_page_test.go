// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/chromium"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A checkout of cilium/hubble-ui has both after this, with node 20.20 or later:
//
//	npm ci && npm run build && cd backend && go build -o ../hubble-ui-backend .
var hubbleUI = flag.String("hubble-ui", "", "a folder with Hubble UI: its page in server/public, and its backend as hubble-ui-backend")

// The page of Hubble UI shows what the agent tells, in a browser: namespaces, cards, links, rows, dropped packets, a click on a card.
func TestPrivilegedHubbleUIPage(t *testing.T) {
	require.Asked(t, *hubbleUI != "", "make hubble with -hubble-ui")
	o, web, worker, vip := newShop(t)
	o.serveHubbleUI(*hubbleUI)
	traffic, done := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() { done(); <-ended })
	go func() { // the page wants packets that come while it is there
		defer close(ended)
		for traffic.Err() == nil {
			for _, d := range []struct {
				from          *e2etest.Pod
				network, addr string
			}{{web, "udp4", e2etest.At(vip, 80)}, {web, "tcp4", e2etest.At(vip, 80)}, {worker, "tcp4", e2etest.At(o.pod.IP4, 80)}} {
				if c, err := e2etest.DialWithin(300*time.Millisecond, d.from, d.network, "", d.addr); err == nil {
					_ = c.Close()
				}
			}
			select {
			case <-traffic.Done():
			case <-time.After(time.Second):
			}
		}
	}()

	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(3*time.Minute))
	defer cancel()
	p, err := chromium.StartT(t, o.Node.NS).Page(ctx)
	if err != nil {
		t.Fatal(err)
	}
	state := func() (text string) {
		_ = p.Eval(context.WithoutCancel(ctx), "document.body.innerText", &text) // as far as there is a page
		return strings.Join(p.Problems(), "\n") + "\n" + text
	}
	await := func(expression string) {
		t.Helper()
		late, cancel := context.WithTimeout(ctx, netlab.Patient(patient))
		defer cancel()
		if err := p.Await(late, expression); err != nil {
			t.Fatalf("%v\n%s", err, state())
		}
	}
	click := func(element string) {
		t.Helper()
		await(element)
		if err := p.Eval(ctx, "void "+element+".click()", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.Show(ctx, chromium.Screen{Width: 1500, Height: 950, Still: true}),
		p.Call(ctx, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": pageTools}, nil), p.Open(ctx, "http://"+pageAddr+"/")); err != nil {
		t.Fatal(err)
	}

	click("find('button', 'Choose namespace')")
	await("['back', 'front', 'shop'].every((n) => find('li', n))")
	click("find('li a', 'shop')")
	for _, card := range []string{"cart 80", "web front", "worker back", "world"} {
		await("cards().some((c) => c.startsWith('" + card + "'))")
	}
	await("cards().filter((c) => c.startsWith('cart')).length === 1")       // the pod, also where a Service stands before it
	await("document.querySelectorAll('.arrow-body path.line').length >= 3") // web, worker, world
	await("rows().length > 5 && document.body.innerText.includes('1/1 nodes')")
	click("find('[class*=styles_icon]', 'Any verdict')")
	click("find('li a', 'Dropped')")
	await("rows().length > 0 && rows().every((r) => r.startsWith('worker back cart shop 80') && r.includes('dropped'))")
	await("cards().length === 2 && document.querySelectorAll('.arrow-body path.line').length === 1")
	click("document.querySelectorAll('[class*=styles_row]')[1]")
	await("['Policy denied', 'worker-5f8-x2', 'cart-5f8-x2', 'app=cart'].every((s) => document.body.innerText.includes(s))")

	if err := p.Open(ctx, "http://"+pageAddr+"/?namespace=front"); err != nil {
		t.Fatal(err)
	}
	await("cards().includes('world 443 TCP')")
	click("find('.visible-cards [class*=headline]', 'world')")
	await("cards().length === 2 && rows().length > 0 && rows().every((r) => r.startsWith('web front world'))")
	click("find('.visible-cards [class*=headline]', 'world')")
	await("cards().filter((c) => c.startsWith('cart shop 80')).length === 1 && rows().some((r) => r.startsWith('web front cart shop 80'))")
	var own string // an answer by UDP is no connection to a port of the client
	if err := p.Eval(ctx, "cards().find((c) => c.startsWith('web'))", &own); err != nil || own != "web" {
		t.Errorf("card of the client: %q, %v", own, err)
	}
	var toasts []string
	if err := p.Eval(ctx, "toasts", &toasts); err != nil || len(toasts) > 0 {
		t.Errorf("the page complains: %q, %v", toasts, err)
	}
	for _, problem := range p.Problems() {
		// Its backend answers so to a request that crosses the end of its stream. The warning is one of the map without cards.
		if !strings.Contains(problem, "400 (Bad Request)") && !strings.Contains(problem, "root svg g element is null") {
			t.Errorf("the browser says: %s", problem)
		}
	}
	if t.Failed() {
		t.Log(state())
	}
}

// pageTools finds what the page shows, and keeps its complaints.
const pageTools = `
const words = (e) => e.innerText.replace(/\s+/g, ' ').trim();
const find = (selector, text) => [...document.querySelectorAll(selector)].find((e) => words(e).startsWith(text));
const cards = () => [...document.querySelectorAll('.visible-cards [class*=serviceMapCardForeground]')].map(words);
const rows = () => [...document.querySelectorAll('[class*=styles_row]')].slice(1).map(words);
const toasts = [];
new MutationObserver((all) => { for (const m of all) for (const n of m.addedNodes) {
	const toast = n.nodeType === 1 && (n.closest('.bp6-toast') ?? n.querySelector('.bp6-toast'));
	if (toast) toasts.push(words(toast));
}}).observe(document, {childList: true, subtree: true});`

const pageAddr = "127.0.0.1:8081"

// serveHubbleUI runs the backend on the node, and serves the page before it as the image's nginx does: /api is the backend.
func (o *observed) serveHubbleUI(dir string) {
	o.T.Helper()
	home := o.T.TempDir()
	kubeconfig, err := os.ReadFile(o.api.Kubeconfig)
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Join(home, ".kube"), 0o700), os.WriteFile(filepath.Join(home, ".kube/config"), kubeconfig, 0o600))
	}
	if err != nil {
		o.T.Fatal(err)
	}
	const backendPort = "8090"
	cmd := exec.Command(filepath.Join(dir, "hubble-ui-backend"))
	cmd.Env = []string{"HOME=" + home, "FLOWS_API_ADDR=" + relay, "EVENTS_SERVER_PORT=" + backendPort, "TLS_RELAY_CA_CERT_FILES="}
	o.Run(cmd)
	mux := http.NewServeMux()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + backendPort})
	proxy.Transport = &http.Transport{DialContext: o.Node.DialContext, DisableKeepAlives: true}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) } // the page closes requests
	mux.Handle("/api/", proxy)
	mux.Handle("/", http.FileServerFS(os.DirFS(filepath.Join(dir, "server/public"))))
	stop, err := o.Node.ServeHTTP(pageAddr, mux)
	if err != nil {
		o.T.Fatal(err)
	}
	o.T.Cleanup(func() { _ = stop() })
}
