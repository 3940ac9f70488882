// SPDX-License-Identifier: Apache-2.0

package log

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A line says what zap's own logger makes of the same fields.
func TestLoggerAgainstZap(t *testing.T) {
	t.Parallel()
	at, addr, err := time.Unix(1e9, 7), netip.MustParseAddr("10.1.0.2"), errors.New("no")
	core, seen := observer.New(zapcore.DebugLevel)
	NewCore(core).With(String("a", "b")).Warn("said",
		ByteString("bytes", []byte("x")), Stringer("addr", addr), Bool("yes", true), Bool("no", false), Int("int", -1),
		Uint32("u32", 1<<31), Duration("took", time.Second), Time("at", at),
		Error(err), Error(nil), NamedError("other", err), Any("any", addr))
	got := seen.All()
	core, seen = observer.New(zapcore.DebugLevel)
	zap.New(core).With(zap.String("a", "b")).Warn("said",
		zap.ByteString("bytes", []byte("x")), zap.Stringer("addr", addr), zap.Bool("yes", true), zap.Bool("no", false), zap.Int("int", -1),
		zap.Uint32("u32", 1<<31), zap.Duration("took", time.Second), zap.Time("at", at),
		zap.Error(err), zap.Error(nil), zap.NamedError("other", err), zap.Any("any", addr))
	want := seen.All()
	if len(got) != 1 || len(want) != 1 || got[0].Level != want[0].Level || got[0].Message != want[0].Message || got[0].Time.IsZero() {
		t.Fatalf("got %v, zap says %v", got, want)
	}
	if diff := cmp.Diff(want[0].ContextMap(), got[0].ContextMap(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("fields (-zap +ours):\n%s", diff)
	}
}

// A level that is not asked for costs nothing and says nothing.
func TestLoggerLevels(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.WarnLevel)
	for _, l := range []*Logger{NewCore(core), NewNop()} {
		l.Debug("debug")
		l.Info("info")
		l.Warn("warn")
		l.Error("error")
	}
	var got []string
	for _, e := range seen.All() {
		got = append(got, e.Level.String()+" "+e.Message)
	}
	if diff := cmp.Diff([]string{"warn warn", "error error"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
