// SPDX-License-Identifier: Apache-2.0

package log

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestLazy(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.InfoLevel)
	made := 0
	l := Lazy(func() *Logger {
		made++
		return NewCore(core).With(String("first", "1"))
	})
	base := l.With(String("a", "x"))
	one, two := base.With(String("b", "y")).Named("n"), base.With(String("b", "z"))
	if made != 0 {
		t.Error("made before there was a line")
	}
	one.Info("one")
	two.Warn("two", String("c", "w"))
	l.Debug("hidden")
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	var got []map[string]any
	for _, e := range seen.All() {
		m := e.ContextMap()
		m["msg"], m["name"] = e.Message, e.LoggerName
		got = append(got, m)
	}
	want := []map[string]any{
		{"msg": "one", "name": "n", "first": "1", "a": "x", "b": "y"},
		{"msg": "two", "name": "", "first": "1", "a": "x", "b": "z", "c": "w"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
