// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// leaseIPAM is the name of an IPAM plugin that is not ours: it asks a server
// for addresses, and has keys and an environment variable of its own. The test
// binary is it, started under its name.
const leaseIPAM = "lease-ipam"

// report is what the plugin tells the server, and the server remembers.
type report struct {
	Verb  string
	Stdin string
	Env   []string
}

// runLeaseIPAM is the plugin. It decodes nothing but its own keys.
func runLeaseIPAM() int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 2
	}
	var conf struct {
		IPAM struct{ ServerURL, Token string } `json:"ipam"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		fmt.Println(`{"code":6,"msg":"lease-ipam cannot read its configuration"}`)
		return 1
	}
	fmt.Fprintln(os.Stderr, "lease-ipam was here")
	socket := strings.TrimPrefix(conf.IPAM.ServerURL, "unix://")
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	body, err := json.Marshal(report{Verb: os.Getenv("CNI_COMMAND"), Stdin: string(stdin), Env: os.Environ()})
	if err != nil {
		return 2
	}
	req, err := http.NewRequest(http.MethodPost, "http://server/lease", bytes.NewReader(body))
	if err != nil {
		return 2
	}
	req.Header.Set("Authorization", "Bearer "+conf.IPAM.Token)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Printf(`{"code":11,"msg":"the lease server does not answer","details":%q}`+"\n", err)
		return 1
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	_, _ = os.Stdout.Write(answer)
	if resp.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}

// leaseServer is the plugin's other side.
type leaseServer struct {
	dir, url string

	mu      sync.Mutex
	reports []report
	refuse  map[string]string // error objects by verb
}

const leaseToken = "s3cr3t;with=odd \"chars\""

// newLeaseServer starts a server and makes a directory with the plugin.
func newLeaseServer(t *testing.T) *leaseServer {
	t.Helper()
	s := &leaseServer{dir: t.TempDir(), refuse: map[string]string{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(s.dir, leaseIPAM)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(s.dir, "server.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s.url = "unix://" + socket
	srv := &http.Server{Handler: s}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return s
}

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var got report
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.Header.Get("Authorization") != "Bearer "+leaseToken {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"code":117,"msg":"wrong token"}`)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, got)
	if e := s.refuse[got.Verb]; e != "" {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, e)
		return
	}
	if got.Verb == "ADD" {
		_, _ = io.WriteString(w, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.7/16","gateway":"10.1.0.1"},{"address":"fd00:10:1::7/64","gateway":"fd00:10:1::1"}],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"search":["lease.example"]}}`)
	}
}

// take returns what the server has heard since the last time.
func (s *leaseServer) take() []report {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.reports
	s.reports = nil
	return got
}

// conf is a plugin's configuration with the lease IPAM, with keys that no plugin
// else knows, in an order and spelling that a decoder would not keep.
func (s *leaseServer) conf(m mainPlugin) object {
	c := m.conf("1.1.0")
	delete(c, "dns")
	delete(c, "ipMasq")
	c["x-vendor"] = object{"b": 1, "a": []any{nil, true, 1e3}}
	c["ipam"] = object{"type": leaseIPAM, "serverURL": s.url, "token": leaseToken, "pool": object{"site": "\u2603 north"}, "retries": 0}
	return c
}

// Every verb of every main plugin passes on to an IPAM plugin that is not ours:
// the caller's bytes on stdin, all of the environment, and back its answer, its
// errors and its stderr.
func TestPrivilegedThirdPartyIPAM(t *testing.T) {
	t.Parallel()
	plugins := append([]mainPlugin{{name: "bridge", keys: object{"bridge": "cni0", "isGateway": true}, interfaces: 3}}, mainPlugins()...)
	for _, m := range plugins {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if m.need != nil {
				m.need(t)
			}
			n, s := m.node(t), newLeaseServer(t)
			conf := s.conf(m)
			prev := leaseAdd(t, n, s, m, conf)
			with := func(key string, v any) object {
				c := maps.Clone(conf)
				c[key] = v
				return c
			}
			for _, call := range []struct {
				verb string
				conf object
			}{
				{"CHECK", with("prevResult", prev)}, {"STATUS", conf},
				{"GC", with("cni.dev/valid-attachments", []object{{"containerID": "pod", "ifname": "eth0"}})}, {"DEL", with("prevResult", prev)}, {"DEL", conf},
			} {
				if _, err := s.call(n, m.name, call.verb, call.conf, nil); err != nil {
					t.Errorf("%s: %v", call.verb, err)
				}
				s.assertUntouched(t, call.verb, call.conf)
			}
			s.errors(t, n, m, conf, with("prevResult", prev))
		})
	}
}

func leaseAdd(t *testing.T, n *node, s *leaseServer, m mainPlugin, conf object) object {
	t.Helper()
	var stderr bytes.Buffer
	out, err := s.call(n, m.name, "ADD", conf, &stderr)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	s.assertUntouched(t, "ADD", conf)
	if !strings.Contains(stderr.String(), "lease-ipam was here") {
		t.Errorf("the IPAM plugin's stderr is lost: %q", stderr.String())
	}
	got := decode(t, "1.1.0", out)
	if text := fmt.Sprint(got["ips"], got["dns"]); !strings.Contains(text, "10.1.0.7/16") || !strings.Contains(text, "fd00:10:1::7/64") || !strings.Contains(text, "lease.example") {
		t.Errorf("the result lacks the IPAM plugin's: %s", out)
	}
	return got
}

// call runs a plugin with a variable of the lease IPAM's own.
func (s *leaseServer) call(n *node, plugin, verb string, conf object, stderr io.Writer) (string, error) {
	stdin, err := json.MarshalIndent(conf, " ", "\t")
	if err != nil {
		return "", err
	}
	env := map[string]string{
		"CNI_PATH":        programs.Dir + ":" + s.dir,
		"CNI_CONTAINERID": "pod", "CNI_NETNS": n.pod.Path, "CNI_IFNAME": "eth0",
		"CNI_ARGS": "IgnoreUnknown=1;LEASE_HINT=x", "LEASE_TOKEN_FILE": "/etc/lease token", "TRACEPARENT": "00-abc",
	}
	return programs.Run(testbin.Call{Plugin: plugin, Verb: verb, Env: env, Stdin: stdin, Stderr: stderr, Do: n.Node.Do})
}

func (s *leaseServer) assertUntouched(t *testing.T, verb string, conf object) {
	t.Helper()
	reports := s.take()
	if len(reports) != 1 {
		t.Fatalf("%s: the IPAM plugin was called %d times", verb, len(reports))
	}
	r := reports[0]
	want, _ := json.MarshalIndent(conf, " ", "\t")
	if d := cmp.Diff(string(want), r.Stdin); d != "" || r.Verb != verb {
		t.Errorf("%s: stdin of the IPAM plugin's %s (- given, + arrived):\n%s", verb, r.Verb, d)
	}
	for _, v := range []string{
		"CNI_CONTAINERID=pod", "CNI_IFNAME=eth0", "CNI_ARGS=IgnoreUnknown=1;LEASE_HINT=x",
		"LEASE_TOKEN_FILE=/etc/lease token", "TRACEPARENT=00-abc", "CNI_COMMAND=" + verb, "CNI_PATH=" + programs.Dir + ":" + s.dir,
	} {
		if !slices.Contains(r.Env, v) {
			t.Errorf("%s: the IPAM plugin did not get %s", verb, v)
		}
	}
}

// errors wants the IPAM plugin's own codes and words, and nothing left of an ADD.
func (s *leaseServer) errors(t *testing.T, n *node, m mainPlugin, conf, check object) {
	t.Helper()
	for verb, c := range map[string]object{"ADD": conf, "CHECK": check, "STATUS": conf, "DEL": conf} {
		s.mu.Lock()
		s.refuse = map[string]string{verb: `{"code":118,"msg":"lease refused: ` + verb + `"}`}
		s.mu.Unlock()
		_, err := s.call(n, m.name, verb, c, nil)
		if err == nil || !strings.Contains(err.Error(), "lease refused: "+verb) {
			t.Errorf("%s: the IPAM plugin's words are lost: %v", verb, err)
		}
		if verb != "CHECK" { // which has its own differences to report beside
			wantCode(t, verb, err, 118)
		}
		got := s.take()
		if verb == "ADD" && (len(got) != 2 || got[1].Verb != "DEL") {
			t.Errorf("an ADD that the IPAM plugin refused is not followed by its DEL: %v", got)
		}
	}
	s.mu.Lock()
	s.refuse = map[string]string{}
	s.mu.Unlock()
	if _, err := s.call(n, m.name, "ADD", conf, nil); err != nil { // nothing is in the way
		t.Errorf("ADD after one that failed: %v", err)
	}
	if _, err := s.call(n, m.name, "DEL", conf, nil); err != nil {
		t.Errorf("DEL: %v", err)
	}
}
