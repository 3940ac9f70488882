// SPDX-License-Identifier: Apache-2.0

// Package report tells what is wrong with the node's network: as an Event on the Node, as a counter, in the log and in /readyz.
//
// The rooms of the agent state a problem as often as they see it. Each is told once, and again every half hour while it stays, because
// the API server forgets Events after an hour. A problem never waits for the API server.
package report

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-cni/sluice/pkg/log"
)

// Reason is what an Event is about, in one word.
type Reason string

// The reasons. docs/agent.md says what to do about each.
const (
	NoAnswer          Reason = "APIServerUnreachable"
	PodCIDRMissing    Reason = "PodCIDRMissing"
	PodCIDRInvalid    Reason = "PodCIDRInvalid"
	PodCIDRConflict   Reason = "PodCIDRConflict"
	PodCIDRChanged    Reason = "PodCIDRChanged"
	InstallFailed     Reason = "InstallFailed"
	MasqueradeFailed  Reason = "MasqueradeFailed"
	PodsMasqueraded   Reason = "PodsMasqueraded"
	RoutesFailed      Reason = "RoutesFailed"
	NodesRefused      Reason = "NodesRefused"
	AnnotationsFailed Reason = "AnnotationsFailed"
	NetworkFailed     Reason = "NetworkFailed"
	GarbageFailed     Reason = "GarbageFailed"
	IPAMAccessFailed  Reason = "IPAMAccessFailed"
	HostPortConflict  Reason = "HostPortConflict"

	NetworkPolicyFailed      Reason = "NetworkPolicyFailed"
	NetworkPolicyUnsupported Reason = "NetworkPolicyUnsupported"
	NetworkPolicyNotEnforced Reason = "NetworkPolicyNotEnforced"
	PodsClosed               Reason = "PodsClosed"
)

// Reasons returns all of them.
func Reasons() []Reason {
	return []Reason{
		NoAnswer, PodCIDRMissing, PodCIDRInvalid, PodCIDRConflict, PodCIDRChanged, InstallFailed, MasqueradeFailed, PodsMasqueraded, RoutesFailed,
		NodesRefused, AnnotationsFailed, NetworkFailed, GarbageFailed, IPAMAccessFailed, HostPortConflict,
		NetworkPolicyFailed, NetworkPolicyUnsupported, NetworkPolicyNotEnforced, PodsClosed,
	}
}

// Counter is something that happened a number of times.
type Counter string

// The counters, by their names in /metrics.
const (
	Reinstalls     Counter = "sluice_agent_reinstalls_total"
	NetworkWrites  Counter = "sluice_agent_network_writes_total"
	RouteSyncs     Counter = "sluice_agent_route_syncs_total"
	GarbageRemoved Counter = "sluice_agent_garbage_removed_total"
	MetricsFailed  Counter = "sluice_agent_node_metrics_failed_total"
)

// help are the counters' descriptions.
func help() map[Counter]string {
	return map[Counter]string{
		Reinstalls:     "Times that files of the plugins were missing or foreign, and were installed again.",
		NetworkWrites:  "Times that the network's configuration was written.",
		RouteSyncs:     "Times that routes were compared with the Node objects.",
		MetricsFailed:  "Times that the metrics of the node's datapath could not be read.",
		GarbageRemoved: "Attachments removed whose pod neither the API server nor the runtime knew.",
	}
}

// repeat is half of the time for which an API server keeps Events.
const repeat = 30 * time.Minute

// settle is how long a problem that comes and goes waits for its next Event.
const settle = 10 * time.Second

// longestMessage is that of an Event (1024 bytes) less some room.
const longestMessage = 1000

// Sink takes Events.
type Sink interface {
	CreateEvent(ctx context.Context, e *corev1.Event) error
}

// Reporter has the problems of one node. It is safe for concurrent use.
type Reporter struct {
	sink Sink
	node string
	log  *log.Logger

	mu       sync.Mutex
	uid      types.UID
	problems map[string]problem // by step
	reasons  map[Reason]int
	counters map[Counter]int
	lastSent map[Reason]time.Time
	waiting  map[string]bool // steps whose problem is to be sent
	wake     chan struct{}
}

type problem struct {
	Reason  Reason
	Message string
}

// New returns a Reporter. Run sends its Events.
func New(sink Sink, node string, l *log.Logger) *Reporter {
	return &Reporter{
		sink: sink, node: node, log: l, problems: map[string]problem{}, reasons: map[Reason]int{}, counters: map[Counter]int{},
		lastSent: map[Reason]time.Time{}, waiting: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// SetNode gives the UID of the Node object, as far as it is known.
func (r *Reporter) SetNode(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid != "" {
		r.uid = uid
	}
}

// Count adds n to a counter.
func (r *Reporter) Count(c Counter, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters[c] += n
}

// Problem states what keeps a step of the agent from success. The step's former problem is replaced.
func (r *Reporter) Problem(step string, reason Reason, message string) {
	p := problem{reason, clean(message)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problems[step] == p {
		return
	}
	r.problems[step] = p
	r.reasons[reason]++
	r.waiting[step] = true
	r.log.Warn(p.Message, log.String("step", step), log.String(log.KeyReason, string(reason)))
	r.poke()
}

// Clear says that the step has no problem any more.
func (r *Reporter) Clear(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.problems[step]
	if !ok {
		return
	}
	delete(r.problems, step)
	delete(r.waiting, step)
	r.log.Info("the problem is gone", log.String("step", step), log.String(log.KeyReason, string(p.Reason)))
}

// Problems returns a line for each problem, in the order of the steps.
func (r *Reporter) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, step := range slices.Sorted(maps.Keys(r.problems)) {
		p := r.problems[step]
		lines = append(lines, fmt.Sprintf("%s: %s: %s", step, p.Reason, p.Message))
	}
	return lines
}

// WriteMetrics writes the counters in the text format of Prometheus.
func (r *Reporter) WriteMetrics(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	texts := help()
	for _, c := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s counter\n%s %d\n", c, texts[c], c, c, r.counters[c])
	}
	b.WriteString("# HELP sluice_agent_problems_total Problems by reason.\n# TYPE sluice_agent_problems_total counter\n")
	for _, reason := range Reasons() {
		fmt.Fprintf(&b, "sluice_agent_problems_total{reason=%q} %d\n", reason, r.reasons[reason])
	}
	now := map[Reason]int{}
	for _, p := range r.problems {
		now[p.Reason] = 1
	}
	b.WriteString("# HELP sluice_agent_problem Whether there is a problem of this reason now.\n# TYPE sluice_agent_problem gauge\n")
	for _, reason := range Reasons() {
		fmt.Fprintf(&b, "sluice_agent_problem{reason=%q} %d\n", reason, now[reason])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Run sends Events until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	again := time.NewTicker(repeat)
	defer again.Stop()
	const shortest, longest = time.Second, time.Minute
	wait := shortest
	for {
		left, err := r.send(ctx)
		var retry <-chan time.Time
		switch {
		case err != nil:
			retry = time.After(wait + rand.N(wait))
			wait = min(2*wait, longest)
		default:
			wait = shortest
			if left {
				retry = time.After(settle)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
		case <-r.wake:
			if err != nil { // the API server is away: what is new waits as well
				select {
				case <-ctx.Done():
					return
				case <-retry:
				}
			}
		case <-again.C:
			r.repeatAll()
		}
	}
}

func (r *Reporter) repeatAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for step := range r.problems {
		r.waiting[step] = true
	}
}

// send sends what waits. left says that some of it has to wait, because its reason was sent a moment ago.
func (r *Reporter) send(ctx context.Context) (left bool, err error) {
	r.mu.Lock()
	var events []*corev1.Event
	var steps []string
	for step := range r.waiting {
		p := r.problems[step]
		if p.Reason == NoAnswer { // the API server cannot be told
			delete(r.waiting, step)
			continue
		}
		if time.Since(r.lastSent[p.Reason]) < settle {
			left = true
			continue
		}
		events, steps = append(events, r.event(p)), append(steps, step)
		delete(r.waiting, step)
		r.lastSent[p.Reason] = time.Now()
	}
	r.mu.Unlock()
	for i, e := range events {
		if err := r.sink.CreateEvent(ctx, e); err != nil {
			r.mu.Lock()
			for _, step := range steps[i:] {
				if p, ok := r.problems[step]; ok {
					r.waiting[step] = true
					delete(r.lastSent, p.Reason)
				}
			}
			r.mu.Unlock()
			r.log.Debug("Event not sent", log.Error(err))
			return left, err
		}
	}
	return left, nil
}

func (r *Reporter) event(p problem) *corev1.Event {
	now := metav1.Now()
	uid := r.uid
	if uid == "" {
		uid = types.UID(r.node) // as kubelet does, whose Events may come before the Node
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: r.node[:min(len(r.node), 200)] + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.node, UID: uid},
		Reason:         string(p.Reason), Message: p.Message, Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "sluice-agent", Host: r.node}, ReportingController: "sluice-agent", ReportingInstance: r.node,
	}
}

func (r *Reporter) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// clean cuts a message to the length of an Event's. Messages may quote what other nodes say of themselves.
func clean(s string) string {
	s = strings.Map(func(c rune) rune {
		if c == '\n' || c == '\t' {
			return ' '
		}
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return -1
		}
		return c
	}, s)
	for len(s) > longestMessage {
		cut := longestMessage - len("…")
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}
