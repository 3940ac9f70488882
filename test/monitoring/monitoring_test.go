// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	rules     = "../../deploy/helm/sluice/monitoring/rules.yaml"
	dashboard = "../../deploy/helm/sluice/monitoring/dashboard.json"
	runbooks  = "../../docs/runbooks"
	busy      = "../../cmd/sluice/internal/metrics/testdata/busy.prom" // what a node with something of everything says
)

func mustRun(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Each alert fires when it should, and only then.
func TestRules(t *testing.T) {
	t.Parallel()
	mustRun(t, "promtool", "check", "rules", rules)
	mustRun(t, "promtool", "test", "rules", "rules_test.yaml")
}

func TestMetricsLint(t *testing.T) {
	t.Parallel()
	c := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	c.Stdin = strings.NewReader(mustRead(t, busy))
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func mustRead(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	alertName  = regexp.MustCompile(`(?m)- alert: (\w+)$`)
	metricName = regexp.MustCompile(`\bsluice_\w+`)
)

// Each alert has its page, and is tested; no page is left of one that has gone.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(runbooks + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, p := range pages {
		left[strings.TrimSuffix(filepath.Base(p), ".md")] = true
	}
	text, tests := mustRead(t, rules), mustRead(t, "rules_test.yaml")
	for _, m := range alertName.FindAllStringSubmatch(text, -1) {
		name := m[1]
		if !left[name] || !strings.Contains(text, "runbook: docs/runbooks/"+name+".md\n") {
			t.Errorf("%s has no runbook", name)
		}
		if !strings.Contains(tests, "alertname: "+name+"\n") {
			t.Errorf("%s is not tested", name)
		}
		delete(left, name)
	}
	for name := range left {
		t.Errorf("no alert has the page %s", name)
	}
}

// Alerts and panels ask for metrics that exist.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	known := mustRead(t, busy) + mustRead(t, "../../pkg/agent/report/report.go")
	suffix := regexp.MustCompile(`_(bucket|count|sum)$`)
	var panels any
	if err := json.Unmarshal([]byte(mustRead(t, dashboard)), &panels); err != nil {
		t.Fatal(err)
	}
	for _, name := range metricName.FindAllString(mustRead(t, rules)+mustRead(t, dashboard), -1) {
		if !strings.Contains(known, suffix.ReplaceAllString(name, "")) {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// A Prometheus scrapes the metrics and has every rule and panel evaluated.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	text := mustRead(t, busy)
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, text)
	}))
	defer node.Close()
	dir := t.TempDir()
	abs, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs: [{job_name: sluice, static_configs: [{targets: [%q]}]}]\n",
		abs, strings.TrimPrefix(node.URL, "http://"))
	if err := os.WriteFile(dir+"/prometheus.yml", []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	p := prometheus(t, dir)
	p.wait(t, `up{job="sluice"} == 1`)
	for query, want := range map[string]string{
		"sluice_datapath_loaded": "1",
		`histogram_quantile(0.5, sluice_cni_verb_duration_seconds_bucket{plugin="bridge"})`: "0.005",
		`sluice_map_pressure_ratio{map="sl_endpoints"}`:                                     "0.25",
	} {
		if got := p.query(t, query); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v", query, got)
		}
	}
	var groups struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(500 * time.Millisecond) {
		p.get(t, "/api/v1/rules", &groups)
		waiting := 0
		for _, r := range groups.Data.Groups[0].Rules {
			if r.Health == "unknown" && time.Now().Before(end) {
				waiting++
			} else if r.Health != "ok" {
				t.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
			}
		}
		if waiting == 0 || t.Failed() {
			break
		}
	}
	for _, q := range panelQueries(t) {
		p.query(t, q)
	}
}

func panelQueries(t *testing.T) (queries []string) {
	t.Helper()
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal([]byte(mustRead(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m").Replace(target.Expr))
		}
	}
	if len(queries) < 10 {
		t.Errorf("%d queries", len(queries))
	}
	return queries
}

// server is a Prometheus of the test's own.
type server string

func prometheus(t *testing.T, dir string) server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	log, err := os.Create(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := exec.CommandContext(t.Context(), "prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+address)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Log(mustRead(t, dir+"/log"))
		}
	})
	return server("http://" + address)
}

func (s server) get(t *testing.T, path string, into any) {
	t.Helper()
	r, err := http.Get(string(s) + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// query returns the values of a query's series.
func (s server) query(t *testing.T, q string) (values []string) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	s.get(t, "/api/v1/query?query="+url.QueryEscape(q), &answer)
	for _, r := range answer.Data.Result {
		values = append(values, fmt.Sprint(r.Value[1]))
	}
	return values
}

// wait waits until a query has a series, from the moment on that the server answers.
func (s server) wait(t *testing.T, q string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		r, err := http.Get(string(s) + "/-/ready")
		if err != nil {
			continue
		}
		r.Body.Close()
		if r.StatusCode == http.StatusOK && len(s.query(t, q)) > 0 {
			return
		}
	}
	t.Fatalf("%s: nothing in a minute", q)
}
