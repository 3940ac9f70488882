// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/chromium"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Each view on each screen: it is filled, fits, has no barrier that axe-core knows, and the pictures of the documentation are what it
// looks like.
func TestPrivilegedPage(t *testing.T) {
	l := netlab.NewT(t)
	b, script := chromium.StartT(t, l.Node.NS), axe(t)
	for name, screen := range screens() {
		t.Run(name, func(t *testing.T) {
			r := newRecorded(t)
			p := open(t, b, serve(t, l.Node, r), screen)
			p.must(p.Eval(p.ctx(), script+"; void 0", nil))
			p.settle(r)
			for view, want := range views() {
				p.show(view)
				p.await("document.getElementById('main').innerText.includes(" + quoted(want) + ")")
				if wide := eval[int](p, "document.documentElement.scrollWidth"); wide > screen.Width {
					t.Errorf("%s is %d pixels wide", view, wide)
				}
				p.wantNoBarrier(view)
				comparePicture(t, p, name, view)
			}
			p.wantQuiet()
		})
	}
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "\\'") + "'" }

// By keyboard alone one gets to the content, to the filter, and sorts.
func TestPrivilegedPageKeyboard(t *testing.T) {
	l := netlab.NewT(t)
	r := newRecorded(t)
	p := open(t, chromium.StartT(t, l.Node.NS), serve(t, l.Node, r), light)
	p.settle(r)
	press := func(key, text string) { t.Helper(); p.must(p.Press(p.ctx(), key, text)) }
	press("Tab", "")
	p.await("document.activeElement.className === 'skip'")
	if top := eval[float64](p, "document.activeElement.getBoundingClientRect().top"); top < 0 {
		t.Errorf("the skip link is not seen: top %v", top)
	}
	press("Enter", "\r")
	p.await("document.activeElement.id === 'main' && document.querySelector('.view').dataset.key === 'overview'")
	press("/", "/") // no filter here: it leads to the connections
	p.await("document.activeElement.dataset.filter === 'q'")
	p.must(p.Call(p.ctx(), "Input.insertText", map[string]any{"text": "10.1.0"}, nil))
	p.await("document.activeElement.value === '10.1.0'")
	p.show("pods")
	press("/", "/")
	p.await("document.activeElement.dataset.filter === 'podText'")
	p.must(p.Call(p.ctx(), "Input.insertText", map[string]any{"text": "veth11"}, nil))
	p.await("document.querySelectorAll('tbody tr').length === 1")
	p.must(p.Eval(p.ctx(), "document.activeElement.value = ''; document.activeElement.dispatchEvent(new Event('input', {bubbles: true})); document.querySelector('[data-column=\"To pod\"]').focus()", nil))
	press("Enter", "\r")
	p.await("document.querySelector('th[aria-sort=descending]')?.innerText.startsWith('To pod')")
	busiest, _ := list(r.node, "endpoints")[0]["device"].(string)
	if first := eval[string](p, "document.querySelector('tbody tr').innerText"); busiest == "" || !strings.HasSuffix(first, busiest) {
		t.Errorf("%s is the busiest pod, and not the first: %s", busiest, first)
	}
	focus := eval[string](p, "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth")
	if focus != "solid2px" {
		t.Errorf("the focus is not seen: %s", focus)
	}
	if motion := eval[string](p, "getComputedStyle(document.querySelector('.mark')).animationName + document.getAnimations().length"); motion != "none0" {
		t.Errorf("it moves although the reader wants no motion: %s", motion)
	}
	p.must(p.Eval(p.ctx(), "document.querySelector('[data-action=theme]').click()", nil))
	p.await("getComputedStyle(document.body).backgroundColor === 'rgb(17, 22, 27)'")
	p.wantQuiet()
}

// What pods, rules and files are called is text, whatever it looks like.
func TestPrivilegedPageHostileNames(t *testing.T) {
	l := netlab.NewT(t)
	r := newRecorded(t)
	r.hostile()
	p := open(t, chromium.StartT(t, l.Node.NS), serve(t, l.Node, r), light)
	p.settle(r)
	for view := range views() {
		p.show(view)
		if n := eval[int](p, "document.querySelectorAll('main img, main script, nav img, header img, header script').length"); n != 0 {
			t.Errorf("%s: %d elements of a name", view, n)
		}
		if view == "pods" && !strings.Contains(p.text(), "<img src=x") {
			t.Errorf("the name is not shown:\n%s", p.text())
		}
	}
	p.wantQuiet()
	// If the page took one for markup after all, the policy would stop it, and the browser would say so.
	for _, breach := range []string{
		"document.head.append(Object.assign(document.createElement('script'), {textContent: 'document.title = \"owned\"'}))",
		"new Image().src = 'http://192.0.2.2/x.png'", "fetch('http://192.0.2.2/').catch(() => 0)",
	} {
		p.must(p.Eval(p.ctx(), "void ("+breach+")", nil))
	}
	stopped := func() (n int) {
		for _, problem := range p.Problems() {
			if strings.Contains(problem, "Content Security Policy") {
				n++
			}
		}
		return n
	}
	for late := time.Now().Add(netlab.Patient(10 * time.Second)); stopped() < 3 && time.Now().Before(late); time.Sleep(50 * time.Millisecond) {
	}
	if n := stopped(); n < 3 {
		t.Errorf("the policy stopped %d of 3: %q", n, p.Problems())
	}
	if title := eval[string](p, "document.title"); title == "owned" {
		t.Error("a name ran")
	}
}

// 200 pods are as legible as 5: the map has as many rows, and says how many it joins.
func TestPrivilegedPageCrowd(t *testing.T) {
	l := netlab.NewT(t)
	b := chromium.StartT(t, l.Node.NS)
	for name, screen := range map[string]chromium.Screen{"light": light, "phone": phone} {
		r := newRecorded(t)
		r.crowd(t, 200)
		p := open(t, b, serve(t, l.Node, r), screen)
		p.settle(r)
		p.show("talk")
		p.await("document.querySelectorAll('svg.talk .end').length >= 9")
		ends, high := eval[int](p, "document.querySelectorAll('svg.talk .end').length"), eval[float64](p, "document.querySelector('svg.talk').getBoundingClientRect().height")
		if ends > 3*14 || high > 600 || !strings.Contains(eval[string](p, "document.querySelector('svg.talk').textContent"), "more") {
			t.Errorf("%s: %d ends, %v pixels high", name, ends, high)
		}
		comparePicture(t, p, name, "crowd")
		p.show("pods")
		p.await("document.querySelectorAll('tbody tr').length === 200")
		p.wantQuiet()
	}
}

// Without a datapath the page says so, and what to do.
func TestPrivilegedPageNotLoaded(t *testing.T) {
	l := netlab.NewT(t)
	b := chromium.StartT(t, l.Node.NS)
	for backend, want := range map[string]string{"": "The first ADD of a plugin that needs it loads it", "none": "eBPF cannot run on this node"} {
		r := newRecorded(t)
		st, _ := r.node["status"].(object)
		st["loaded"], st["backend"], st["reason"] = false, backend, "no BTF"
		for _, key := range []string{"maps", "devices", "drops", "probes"} {
			st[key] = []any{}
		}
		delete(st, "config")
		delete(st, "local")
		for _, key := range []string{"endpoints", "hostports", "policies", "drops", "nat_pools"} {
			r.node[key] = []any{}
		}
		r.node["connections"] = object{"total": 0, "fast": 0, "states": object{}, "kinds": object{}}
		r.node["talk"] = object{"edges": []any{}, "left_out": 0}
		r.connections = object{"total": 0, "matched": 0, "left_out": 0, "rows": []any{}}
		p := open(t, b, serve(t, l.Node, r), light)
		p.settle(r)
		for view := range views() {
			p.show(view)
			if view != "rules" && view != "doctor" && !strings.Contains(p.text(), want) {
				t.Errorf("%s does not say %q:\n%s", view, want, p.text())
			}
		}
		p.wantQuiet()
	}
}
