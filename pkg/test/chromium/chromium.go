// SPDX-License-Identifier: Apache-2.0

// Package chromium drives a headless Chromium for tests, by the DevTools protocol over two pipes. So the browser can be in another network
// namespace than the test, and nothing listens. It has what the page's tests need: open, evaluate, wait, screenshots, and what went wrong.
package chromium

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Browser is a Chromium that runs.
type Browser struct {
	cmd  *exec.Cmd
	to   *os.File
	done chan struct{} // closed when it has ended

	mu      sync.Mutex
	last    int
	waiting map[int]chan reply
	pages   map[string]*Page
}

// Page is a tab.
type Page struct {
	b       *Browser
	session string

	mu       sync.Mutex
	problems []string // errors of scripts, of the console, and of what was loaded
	requests []string // URLs
}

type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// message is an answer or an event.
type message struct {
	ID      int             `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Session string          `json:"sessionId"`
	reply
}

// Start runs Chromium with its files in dir. start is exec.Cmd.Start, or one that enters a namespace first.
func Start(dir string, start func(*exec.Cmd) error) (*Browser, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inR.Close(), inW.Close())
	}
	b := &Browser{to: inW, done: make(chan struct{}), waiting: map[int]chan reply{}, pages: map[string]*Page{}}
	// The test is root, for which Chromium has no sandbox. It loads the page under test and nothing else.
	b.cmd = exec.Command("chromium", "--headless", "--no-sandbox", "--remote-debugging-pipe", "--user-data-dir="+dir, "--disable-gpu",
		"--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none", "--disable-lcd-text",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--password-store=basic", "--lang=en-US", "about:blank")
	b.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
	b.cmd.ExtraFiles = []*os.File{inR, outW} // 3 and 4, as the flag says
	err = start(b.cmd)
	_, _ = inR.Close(), outW.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("chromium: %w", err), inW.Close(), outR.Close())
	}
	go b.read(outR)
	return b, nil
}

// Close ends the browser, by force if it does not end. Its helpers may live a moment longer, and write into its folder.
func (b *Browser) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = b.call(ctx, "", "Browser.close", nil, nil) // it may end before it answers
	select {
	case <-b.done:
	case <-ctx.Done():
		_ = b.cmd.Process.Kill()
		<-b.done
	}
	_ = b.cmd.Wait() // how it ended does not matter
	return b.to.Close()
}

const closeTime = 10 * time.Second

// read takes messages, which end with a zero byte, until the browser has ended.
func (b *Browser) read(f *os.File) {
	defer close(b.done)
	defer f.Close()
	for r := bufio.NewReaderSize(f, 1<<20); ; {
		line, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		answer, page := b.waiting[m.ID], b.pages[m.Session]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && answer != nil:
			answer <- m.reply
		case page != nil:
			page.event(m)
		}
	}
}

func (b *Browser) call(ctx context.Context, session, method string, params, into any) error {
	answer := make(chan reply, 1)
	b.mu.Lock()
	b.last++
	text, err := json.Marshal(struct {
		ID      int    `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
		Session string `json:"sessionId,omitempty"`
	}{b.last, method, params, session})
	if err == nil {
		b.waiting[b.last] = answer
		_, err = b.to.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case a := <-answer:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", method, a.Error.Message)
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(a.Result, into)
	case <-b.done:
		return fmt.Errorf("%s: chromium has ended", method)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

type object map[string]any

// Page opens an empty tab.
func (b *Browser) Page(ctx context.Context) (*Page, error) {
	var own struct {
		ID string `json:"browserContextId"`
	}
	var target struct {
		ID string `json:"targetId"`
	}
	var attached struct {
		Session string `json:"sessionId"`
	}
	err := b.call(ctx, "", "Target.createBrowserContext", nil, &own) // no cookie and nothing stored of another tab
	if err == nil {
		err = b.call(ctx, "", "Target.createTarget", object{"url": "about:blank", "browserContextId": own.ID}, &target)
	}
	if err == nil {
		err = b.call(ctx, "", "Target.attachToTarget", object{"targetId": target.ID, "flatten": true}, &attached)
	}
	if err != nil {
		return nil, err
	}
	p := &Page{b: b, session: attached.Session}
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		if err := p.Call(ctx, domain+".enable", nil, nil); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Call is a method of the DevTools protocol. into may be nil.
func (p *Page) Call(ctx context.Context, method string, params, into any) error {
	return p.b.call(ctx, p.session, method, params, into)
}

func (p *Page) event(m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e struct {
		Type    string `json:"type"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
		Entry struct {
			Level, Text, URL string
		} `json:"entry"`
		Exception struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
		Args []struct {
			Value       any    `json:"value"`
			Description string `json:"description"`
		} `json:"args"`
	}
	if json.Unmarshal(m.Params, &e) != nil {
		return
	}
	switch m.Method {
	case "Network.requestWillBeSent":
		p.requests = append(p.requests, e.Request.URL)
	case "Runtime.exceptionThrown":
		p.problems = append(p.problems, e.Exception.Text+" "+e.Exception.Exception.Description)
	case "Runtime.consoleAPICalled":
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			p.problems = append(p.problems, fmt.Sprintf("console.%s: %v", e.Type, e.Args))
		}
	case "Log.entryAdded": // violations of a Content-Security-Policy too
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			p.problems = append(p.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// Problems are the errors and warnings so far.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.problems...)
}

// Requests are the URLs asked for so far.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

// Open goes to a URL.
func (p *Page) Open(ctx context.Context, url string) error {
	var to struct {
		Error string `json:"errorText"`
	}
	if err := p.Call(ctx, "Page.navigate", object{"url": url}, &to); err != nil {
		return err
	}
	if to.Error != "" {
		return fmt.Errorf("open %s: %s", url, to.Error)
	}
	return nil
}

// Eval evaluates an expression of JavaScript, waits for its promise, and decodes the value into into, which may be nil.
func (p *Page) Eval(ctx context.Context, expression string, into any) error {
	var r struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := p.Call(ctx, "Runtime.evaluate", object{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if err != nil {
		return err
	}
	if r.Exception != nil {
		return fmt.Errorf("%s %s", r.Exception.Text, r.Exception.Exception.Description)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(r.Result.Value, into)
}

// Await waits until an expression is true.
func (p *Page) Await(ctx context.Context, expression string) error {
	for {
		var ok bool
		if err := p.Eval(ctx, "Boolean("+expression+")", &ok); err != nil {
			return fmt.Errorf("await %s: %w", expression, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("await %s: %w", expression, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Screen is what a reader looks at.
type Screen struct {
	Width, Height int
	Dark          bool
	Still         bool // prefers-reduced-motion
}

// Show makes the page have a screen.
func (p *Page) Show(ctx context.Context, s Screen) error {
	features := []object{{"name": "prefers-color-scheme", "value": "light"}, {"name": "prefers-reduced-motion", "value": ""}}
	if s.Dark {
		features[0]["value"] = "dark"
	}
	if s.Still {
		features[1]["value"] = "reduce"
	}
	if err := p.Call(ctx, "Emulation.setEmulatedMedia", object{"features": features}, nil); err != nil {
		return err
	}
	return p.Call(ctx, "Emulation.setDeviceMetricsOverride", object{"width": s.Width, "height": s.Height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Press presses and releases a key, with the text that it writes.
func (p *Page) Press(ctx context.Context, key, text string) error {
	down := object{"type": "keyDown", "key": key, "code": key, "text": text}
	if key == "Tab" {
		down["windowsVirtualKeyCode"] = 9
	}
	if key == "Enter" {
		down["windowsVirtualKeyCode"] = 13
	}
	if err := p.Call(ctx, "Input.dispatchKeyEvent", down, nil); err != nil {
		return err
	}
	return p.Call(ctx, "Input.dispatchKeyEvent", object{"type": "keyUp", "key": key, "code": key}, nil)
}

// Screenshot is what the screen shows, as PNG.
func (p *Page) Screenshot(ctx context.Context) ([]byte, error) {
	var shot struct {
		Data string `json:"data"`
	}
	if err := p.Call(ctx, "Page.captureScreenshot", object{"format": "png"}, &shot); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(shot.Data)
}
