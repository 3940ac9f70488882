// SPDX-License-Identifier: Apache-2.0

package log

import (
	"fmt"
	"time"

	"go.uber.org/zap/zapcore"
)

// Logger writes lines to a zap core. It is zap's own logger without what plugins
// do not use: that one brings an HTTP server, TLS and their initialisers into
// every process of a chain, a twentieth of an ADD. Safe for concurrent use.
type Logger struct {
	core zapcore.Core
	name string // parts joined by dots
}

// Field is one key of a line with its value.
type Field = zapcore.Field

// NewCore returns a logger that writes to core, for tests that look at what was
// logged.
func NewCore(core zapcore.Core) *Logger { return &Logger{core: core} }

// NewNop returns a logger that writes nothing.
func NewNop() *Logger { return &Logger{core: zapcore.NewNopCore()} }

// With returns a logger that puts fields on every line.
func (l *Logger) With(fields ...Field) *Logger { return &Logger{l.core.With(fields), l.name} }

// Named returns a logger that adds a part to the name of who writes its lines.
func (l *Logger) Named(name string) *Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return &Logger{l.core, name}
}

// Debug writes a line for who looks for a mistake.
func (l *Logger) Debug(msg string, fields ...Field) { l.log(zapcore.DebugLevel, msg, fields) }

// Info writes a line about what was done.
func (l *Logger) Info(msg string, fields ...Field) { l.log(zapcore.InfoLevel, msg, fields) }

// Warn writes a line about what is wrong and is done without.
func (l *Logger) Warn(msg string, fields ...Field) { l.log(zapcore.WarnLevel, msg, fields) }

// Error writes a line about what failed.
func (l *Logger) Error(msg string, fields ...Field) { l.log(zapcore.ErrorLevel, msg, fields) }

func (l *Logger) log(level zapcore.Level, msg string, fields []Field) {
	if !l.core.Enabled(level) {
		return
	}
	if c := l.core.Check(zapcore.Entry{Level: level, Time: time.Now(), LoggerName: l.name, Message: msg}, nil); c != nil {
		c.Write(fields...)
	}
}

// String is a field with a text.
func String(key, v string) Field { return Field{Key: key, Type: zapcore.StringType, String: v} }

// ByteString is a field with a text in bytes.
func ByteString(key string, v []byte) Field {
	return Field{Key: key, Type: zapcore.ByteStringType, Interface: v}
}

// Stringer is a field with what v's String says, asked only when the line is
// written.
func Stringer(key string, v fmt.Stringer) Field {
	return Field{Key: key, Type: zapcore.StringerType, Interface: v}
}

// Bool is a field with yes or no.
func Bool(key string, v bool) Field {
	f := Field{Key: key, Type: zapcore.BoolType}
	if v {
		f.Integer = 1
	}
	return f
}

// Int is a field with a number.
func Int(key string, v int) Field {
	return Field{Key: key, Type: zapcore.Int64Type, Integer: int64(v)}
}

// Uint32 is a field with a number.
func Uint32(key string, v uint32) Field {
	return Field{Key: key, Type: zapcore.Uint32Type, Integer: int64(v)}
}

// Duration is a field with a time span.
func Duration(key string, v time.Duration) Field {
	return Field{Key: key, Type: zapcore.DurationType, Integer: int64(v)}
}

// Time is a field with a point in time.
func Time(key string, v time.Time) Field {
	return Field{Key: key, Type: zapcore.TimeFullType, Interface: v}
}

// Error is a field with an error under the usual key; nothing for nil.
func Error(err error) Field { return NamedError(KeyError, err) }

// NamedError is a field with an error; nothing for nil.
func NamedError(key string, err error) Field {
	if err == nil {
		return Field{Type: zapcore.SkipType}
	}
	return Field{Key: key, Type: zapcore.ErrorType, Interface: err}
}

// Any is a field with a value of any type, as fmt shows it.
func Any(key string, v any) Field { return String(key, fmt.Sprint(v)) }
