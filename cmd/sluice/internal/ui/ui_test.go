// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/servertest"
)

// fixed is a source that counts its looks.
type fixed struct {
	looks, asked atomic.Int32
	err          error
}

func (f *fixed) Look(context.Context) (Look, error) {
	f.looks.Add(1)
	return f, f.err
}

func (f *fixed) Doctor(context.Context) (any, error) {
	f.asked.Add(1)
	return map[string]string{"worst": "ok"}, f.err
}

func (f *fixed) Node() any { return map[string]any{"taken": "now", "name": "<script>"} }

func (f *fixed) Connections(query url.Values) (any, error) {
	if query.Has("bad") {
		return nil, errors.New(`bad: "<b>"`)
	}
	return []string{query.Get("q")}, nil
}

// start serves on a free port of the loopback.
func start(t *testing.T, address string, source Source) *Server {
	t.Helper()
	s, err := New(address, time.Minute, source)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, s.Run)
	return s
}

// gotten is what a request gets.
type gotten struct {
	*http.Response
	body string
}

func ask(t *testing.T, c *http.Client, method, url string, change ...func(*http.Request)) gotten {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return gotten{a, string(b)}
}

// browser opens the printed URL, and returns a client that has the cookie and the page's address.
func browser(t *testing.T, s *Server) (c *http.Client, page string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	connections := &http.Transport{} // its own
	t.Cleanup(connections.CloseIdleConnections)
	c = &http.Client{Jar: jar, Transport: connections, Timeout: 20 * time.Second}
	a := ask(t, c, http.MethodGet, s.URL())
	if a.StatusCode != http.StatusOK || !strings.Contains(a.body, `src="main.js"`) {
		t.Fatalf("the printed URL: %s, %q", a.Status, a.body)
	}
	return c, a.Request.URL.String()
}

// Without the token nothing is answered but that: no file, no fact of the node, also not with a cookie of another server of the host.
func TestPageToken(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", &fixed{})
	c, page := browser(t, s)
	if strings.Contains(page, s.gate.token) || strings.Contains(page, s.gate.cookie) {
		t.Errorf("a secret stays in the address bar: %s", page)
	}
	root := "http://" + s.listen.Addr().String()
	for _, path := range []string{
		root + "/", root + "/?token=", root + "/?token=" + s.gate.cookie, root + "/?token=" + strings.ToLower(s.gate.token), root + "/api/node",
		root + "/main.js", root + "/..%2f", page, page + "api/node", page + "api/doctor", page + "api/connections", page + "main.js", page + "none",
	} {
		for name, value := range map[string]string{"none": "", "wrong": "x", "token": s.gate.token} {
			a := ask(t, &http.Client{}, http.MethodGet, path, func(r *http.Request) {
				if name != "none" {
					r.AddCookie(&http.Cookie{Name: cookieName, Value: value})
				}
			})
			if a.StatusCode != http.StatusUnauthorized || strings.Contains(a.body, "taken") {
				t.Errorf("%s with the cookie %s: %s, %q", path, name, a.Status, a.body)
			}
		}
	}
	for _, path := range []string{"", "main.js", "app.css", "api/node", "api/doctor", "api/connections"} {
		if a := ask(t, c, http.MethodGet, page+path); a.StatusCode != http.StatusOK || a.body == "" {
			t.Errorf("%s with the cookie: %s", path, a.Status)
		}
	}
	// Another server of the host has set a cookie with the name.
	a := ask(t, &http.Client{}, http.MethodGet, page+"api/node", func(r *http.Request) {
		r.Header.Set("Cookie", cookieName+"=x; "+cookieName+"="+s.gate.cookie)
	})
	if a.StatusCode != http.StatusOK {
		t.Errorf("with a second cookie of the name: %s", a.Status)
	}
}

// The cookie is no script's, no other site's, and goes to no other server of the host.
func TestPageCookie(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", &fixed{})
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	a := ask(t, c, http.MethodGet, s.URL())
	cookies := a.Cookies()
	if a.StatusCode != http.StatusSeeOther || len(cookies) != 1 {
		t.Fatalf("%s, %v", a.Status, cookies)
	}
	k := cookies[0]
	if !k.HttpOnly || k.SameSite != http.SameSiteStrictMode || k.Path != s.gate.room || len(k.Path) < 20 || k.Domain != "" || k.Value == s.gate.token {
		t.Errorf("cookie %+v", k)
	}
	other, err := New("127.0.0.1:0", time.Minute, &fixed{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.gate == s.gate {
		t.Error("two runs have the same secrets")
	}
}

// A page of another site whose name leads to the loopback gets nothing, with the cookie either.
func TestPageHost(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", &fixed{})
	_, page := browser(t, s)
	for host, want := range map[string]int{
		"127.0.0.1:9880": 200, "127.0.0.1": 200, "localhost:1": 200, "LOCALHOST": 200, "[::1]:9880": 200, "127.8.8.8:1": 200,
		"evil.example": 403, "evil.example:9880": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "192.0.2.1:9880": 403,
		"0.0.0.0:9880": 403, "evil.example@127.0.0.1": 403, "localhost.": 403, "[fe80::1%25lo]:1": 403,
	} {
		a := ask(t, &http.Client{}, http.MethodGet, page+"api/node", func(r *http.Request) {
			r.Host = host
			r.AddCookie(&http.Cookie{Name: cookieName, Value: s.gate.cookie})
		})
		if a.StatusCode != want {
			t.Errorf("Host %s: %s, want %d", host, a.Status, want)
		}
	}
}

// Nothing but reading, on no path.
func TestPageMethods(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", &fixed{})
	c, page := browser(t, s)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodTrace, "PROPFIND"} {
		for _, path := range []string{"", "api/node", "api/connections", "api/doctor", "app.css"} {
			if a := ask(t, c, method, page+path); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %s", method, path, a.Status)
			}
		}
	}
	if a := ask(t, c, http.MethodHead, page+"api/node"); a.StatusCode != http.StatusOK || a.body != "" {
		t.Errorf("HEAD: %s, %q", a.Status, a.body)
	}
}

// Each answer, also one that refuses, tells the browser what the page may do.
func TestPageHeaders(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", &fixed{})
	c, page := browser(t, s)
	for _, path := range []string{page, page + "main.js", page + "api/node", page + "none", "http://" + s.listen.Addr().String() + "/"} {
		h := ask(t, c, http.MethodGet, path).Header
		for key, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Access-Control-Allow-Origin": "",
		} {
			if key == "Cache-Control" && strings.HasSuffix(path, "/none") {
				continue // net/http takes it from an error
			}
			if h.Get(key) != want {
				t.Errorf("%s: %s is %q", path, key, h.Get(key))
			}
		}
	}
	for _, bad := range []string{"unsafe", "http:", "https:", "*"} {
		if strings.Contains(policy, bad) {
			t.Errorf("the policy has %q", bad)
		}
	}
}

// The page has no script, style or handler in its HTML, and no file asks for another origin: the policy would stop it, unseen.
func TestPageAssets(t *testing.T) {
	t.Parallel()
	err := fs.WalkDir(assets, "assets", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(assets, path)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", ""), "SPDX-License-Identifier: Apache-2.0", "SPDX")
		for _, bad := range []string{"http://", "https://", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", " style=\"", " onclick", "@import", "url("} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		if !strings.Contains(text, "SPDX") {
			t.Errorf("%s names no licence", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// One look serves all who ask within the interval, at once or one after the other.
func TestPageOneLook(t *testing.T) {
	t.Parallel()
	source := &fixed{}
	s := start(t, "127.0.0.1:0", source)
	c, page := browser(t, s)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for _, path := range []string{"api/node", "api/connections?q=a", "api/doctor"} {
				if a := ask(t, c, http.MethodGet, page+path); a.StatusCode != http.StatusOK {
					t.Errorf("%s: %s", path, a.Status)
				}
			}
		})
	}
	all.Wait()
	if looks, asked := source.looks.Load(), source.asked.Load(); looks != 1 || asked != 1 {
		t.Errorf("%d looks, %d examinations", looks, asked)
	}
}

// What a pod or a query is called is data: JSON, and no browser takes it for HTML.
func TestPageAnswers(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", &fixed{})
	c, page := browser(t, s)
	for path, want := range map[string]int{
		"api/node": 200, "api/connections?q=%3Cb%3E": 200, "api/connections?bad=1": 400, "api/connections?q=%zz": 400, "api/none": 404,
		"api/connections?q=" + strings.Repeat("x", maxQuery): 414, "../../etc/passwd": 401, "%2e%2e/ui.go": 404, "assets/": 404,
	} {
		a := ask(t, c, http.MethodGet, page+path)
		if a.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, a.Status, want)
		}
		if kind := a.Header.Get("Content-Type"); strings.Contains(kind, "html") || strings.Contains(a.body, "<b>") || strings.Contains(a.body, "<script") {
			t.Errorf("%s: %s %q", path, kind, a.body)
		}
	}
	var said problem
	if err := json.Unmarshal([]byte(ask(t, c, http.MethodGet, page+"api/connections?bad=1").body), &said); err != nil || said.Error != `bad: "<b>"` {
		t.Errorf("%v, %+v", err, said)
	}
}

// A node that cannot be looked at is an answer, which is not asked for again at once.
func TestPageFailedLook(t *testing.T) {
	t.Parallel()
	source := &fixed{err: errors.New("run this as root")}
	s := start(t, "127.0.0.1:0", source)
	if err := s.Check(t.Context()); err == nil || err.Error() != "run this as root" {
		t.Errorf("%v", err)
	}
	c, page := browser(t, s)
	for _, path := range []string{"api/node", "api/connections", "api/doctor"} {
		if a := ask(t, c, http.MethodGet, page+path); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(a.body, "run this as root") {
			t.Errorf("%s: %s, %s", path, a.Status, a.body)
		}
	}
	if n := source.looks.Load(); n != 1 {
		t.Errorf("%d looks", n)
	}
}

// Only loopback addresses, by number.
func TestPageListen(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "9880", ":9880", "0.0.0.0:9880", "[::]:9880", "192.0.2.1:9880", "localhost:9880", "example.com:80", "127.0.0.1", "[::ffff:192.0.2.1]:80"} {
		if s, err := New(bad, time.Second, &fixed{}); err == nil {
			t.Errorf("%q: it listens at %s", bad, s.listen.Addr())
			_ = s.Close()
		}
	}
	s := start(t, "127.0.0.1:0", &fixed{})
	if _, err := New(s.listen.Addr().String(), time.Second, &fixed{}); err == nil {
		t.Error("the same address twice")
	}
}

// Clients that say nothing, and clients that talk without the token, do not delay the operator's browser. Heads have a limit.
func TestPageSlowClients(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) { t.Parallel(); slowClients(t, start(t, address, &fixed{})) })
	}
}

func slowClients(t *testing.T, s *Server) {
	first, page := browser(t, s)
	for _, says := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"} {
		for range 500 {
			c, err := net.Dial("tcp", s.listen.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = fmt.Fprint(c, says) // the server may have closed it
		}
		begin := time.Now()
		browser(t, s)
		if took := time.Since(begin); took > time.Second {
			t.Errorf("clients that say %q hold a browser up for %s", says, took)
		}
	}
	if a := ask(t, first, http.MethodGet, page+"api/node"); a.StatusCode != http.StatusOK {
		t.Errorf("a browser of before: %s", a.Status)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X", strings.Repeat("x", 4*maxHead))
	if a, err := http.DefaultClient.Do(r); err == nil { // else the server has closed the connection before all was sent
		_ = a.Body.Close()
		if a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a large head: %s", a.Status)
		}
	}
}
