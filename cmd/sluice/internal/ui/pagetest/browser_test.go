// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/ui"
	"github.com/sluice-cni/sluice/pkg/test/chromium"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/servertest"
)

// Screens that the page is looked at on.
var (
	light = chromium.Screen{Width: 1280, Height: 860, Still: true}
	dark  = chromium.Screen{Width: 1280, Height: 860, Dark: true, Still: true}
	phone = chromium.Screen{Width: 360, Height: 740, Still: true}
)

func screens() map[string]chromium.Screen {
	return map[string]chromium.Screen{"light": light, "dark": dark, "phone": phone}
}

// views and what each must show.
func views() map[string]string {
	return map[string]string{
		"overview": "Needs attention", "pods": "veth0", "connections": "10.1.0.2:80", "talk": "Opened by", "drops": "spoofed-ip",
		"hostports": "5432", "rules": "Policy 3", "maps": "sl_ct_unassured", "doctor": "redirect_peer",
	}
}

// tab is a page of a test, whose failures end it.
type tab struct {
	*chromium.Page
	t      *testing.T
	origin string
}

const patience = time.Minute

func (p *tab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(p.t.Context(), netlab.Patient(patience))
	p.t.Cleanup(cancel)
	return ctx
}

func (p *tab) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%v\n%s", err, strings.Join(p.Problems(), "\n"))
	}
}

// await waits until an expression is true.
func (p *tab) await(expression string) {
	p.t.Helper()
	if err := p.Await(p.ctx(), expression); err != nil {
		var text string
		_ = p.Eval(p.ctx(), "document.body.innerText", &text) // as far as there is one
		p.t.Fatalf("%v\n%s\n%s", err, strings.Join(p.Problems(), "\n"), text)
	}
}

// eval is the value of an expression.
func eval[T any](p *tab, expression string) (v T) {
	p.t.Helper()
	p.must(p.Eval(p.ctx(), expression, &v))
	return v
}

// show goes to a view and waits until it is drawn.
func (p *tab) show(view string) {
	p.t.Helper()
	p.must(p.Eval(p.ctx(), "void (location.hash = '#/"+view+"')", nil))
	p.await("document.querySelector('.view')?.dataset.key === '" + view + "'")
}

// text is what the view says.
func (p *tab) text() string {
	p.t.Helper()
	return eval[string](p, "document.getElementById('main').innerText")
}

// open opens a URL on a screen in a new tab.
func open(t *testing.T, b *chromium.Browser, url string, s chromium.Screen) *tab {
	t.Helper()
	origin, _, _ := strings.Cut(url, "/?")
	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(patience))
	defer cancel()
	page, err := b.Page(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := &tab{page, t, origin}
	p.must(p.Show(p.ctx(), s))
	p.must(p.Open(p.ctx(), url))
	p.await("document.querySelector('.view')")
	return p
}

// wantQuiet checks that no script failed, nothing was against the policy, and nothing was asked of another origin.
func (p *tab) wantQuiet() {
	p.t.Helper()
	for _, problem := range p.Problems() {
		p.t.Errorf("the browser says: %s", problem)
	}
	requests := p.Requests()
	for _, r := range requests {
		if !strings.HasPrefix(r, p.origin+"/") {
			p.t.Errorf("it asks for %s", r)
		}
	}
	if len(requests) < 5 {
		p.t.Errorf("only %d requests were seen", len(requests))
	}
}

// serve serves a source on the loopback of a node, and returns the URL.
func serve(t *testing.T, n *netlab.Node, source ui.Source) string {
	t.Helper()
	var s *ui.Server
	if err := n.Do(func() (err error) {
		s, err = ui.New("127.0.0.1:0", 20*time.Millisecond, source)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, s.Run)
	return s.URL()
}

// settle waits until the page has all looks and stops it.
func (p *tab) settle(r *recorded) {
	p.t.Helper()
	for {
		r.mu.Lock()
		n := r.n
		r.mu.Unlock()
		if n > looks+2 {
			break
		}
		select {
		case <-p.ctx().Done():
			p.t.Fatalf("%d looks of %d", n, looks)
		case <-time.After(20 * time.Millisecond):
		}
	}
	p.await("document.querySelector('#nav a[href=\"#/doctor\"] .number')")
	p.must(p.Eval(p.ctx(), "void document.querySelector('[data-action=pause]').click()", nil))
	p.await("document.querySelector('[data-action=pause]').getAttribute('aria-pressed') === 'true'")
}

// wantNoBarrier has axe-core look at what is shown.
func (p *tab) wantNoBarrier(where string) {
	p.t.Helper()
	type violation struct {
		ID    string   `json:"id"`
		Help  string   `json:"help"`
		Nodes []string `json:"nodes"`
	}
	found := eval[[]violation](p, `axe.run(document, {resultTypes: ['violations']}).then((r) =>
		r.violations.map((v) => ({id: v.id, help: v.help, nodes: v.nodes.map((n) => n.html.slice(0, 160) + ' ' + n.failureSummary)})))`)
	for _, v := range found {
		nodes, _ := json.MarshalIndent(v.Nodes[:min(3, len(v.Nodes))], "", " ")
		p.t.Errorf("%s: %s: %s %s", where, v.ID, v.Help, nodes)
	}
}
