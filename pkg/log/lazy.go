// SPDX-License-Identifier: Apache-2.0

package log

import (
	"sync"

	"go.uber.org/zap/zapcore"
)

// Lazy returns a logger that make is called for with the first line: most verbs write none, and then a configuration need not
// be read for where to write it. make is called at most once.
func Lazy(make func() *Logger) *Logger {
	return NewCore(&lazyCore{base: sync.OnceValue(func() zapcore.Core { return make().core })})
}

// lazyCore is the core that base returns, with fields added to it.
type lazyCore struct {
	base   func() zapcore.Core
	fields []Field
}

func (c *lazyCore) core() zapcore.Core {
	if len(c.fields) == 0 {
		return c.base()
	}
	return c.base().With(c.fields)
}

func (c *lazyCore) With(fields []Field) zapcore.Core {
	return &lazyCore{c.base, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *lazyCore) Enabled(l zapcore.Level) bool { return c.base().Enabled(l) }

func (c *lazyCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.core().Check(e, ce)
}

func (c *lazyCore) Write(e zapcore.Entry, fields []Field) error { return c.core().Write(e, fields) }

func (c *lazyCore) Sync() error { return c.base().Sync() }
