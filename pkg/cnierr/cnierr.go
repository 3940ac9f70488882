// SPDX-License-Identifier: Apache-2.0

// Package cnierr makes the errors that leave a plugin as CNI error objects.
//
// It owns the table of codes (codes.go) and the one translation from a Go
// error chain to a types.Error (From). Libraries return plain errors or
// sentinels; plugins give them a code here. It imports none of our packages.
package cnierr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
)

// Error is an error with a CNI code. Msg is one short sentence for the person
// who reads the runtime's log; Details is optional background.
type Error struct {
	Code    uint
	Msg     string
	Details string

	cause error
}

// Error returns message, details and cause in that order, each once.
func (e *Error) Error() string {
	s := e.Msg
	if e.Details != "" {
		s += " (" + e.Details + ")"
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the error that Wrap was given, so errors.Is and errors.As
// reach it.
func (e *Error) Unwrap() error { return e.cause }

// As lets errors.As find a *types.Error in one of ours, which is what the
// containernetworking libraries look for.
func (e *Error) As(target any) bool {
	t, ok := target.(**types.Error)
	if ok {
		*t = e.object()
	}
	return ok
}

func (e *Error) object() *types.Error {
	details := e.Details
	if e.cause != nil {
		details = joinNonEmpty(details, e.cause.Error())
	}
	return &types.Error{Code: legal(e.Code), Msg: oneLine(e.Msg), Details: oneLine(details)}
}

// New returns an error with the given code.
func New(code uint, msg, details string) error {
	return &Error{Code: code, Msg: msg, Details: details}
}

// Config reports a value of the configuration that cannot be used (code 7).
// The message names key and value, as the specification asks.
func Config(key string, value any, why string) error {
	return &Error{Code: CodeConfig, Msg: fmt.Sprintf("invalid %s %s: %s", key, show(value), why)}
}

// Unsupported reports a field or value that is valid but not supported here
// (code 2). The message names key and value.
func Unsupported(key string, value any, why string) error {
	return &Error{Code: CodeUnsupported, Msg: fmt.Sprintf("unsupported %s %s: %s", key, show(value), why)}
}

// Wrap gives err a code and a sentence. It returns nil for a nil err; the
// chain below stays reachable.
func Wrap(code uint, err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, Msg: fmt.Sprintf(format, a...), cause: err}
}

// Unavailable turns ADD's codes for a backend that cannot run (105), or fails
// for a reason of the node's (100), into STATUS's (50). Other errors, such as of
// the configuration, stay.
func Unavailable(err error) error {
	var own *Error
	if errors.As(err, &own) && (own.Code == CodeNoDatapath || own.Code == CodeKernel) {
		return Wrap(CodeUnavailable, err, "%s", own.Msg)
	}
	return err
}

// From makes the CNI error object for err, nil for nil. An Error keeps its
// code and so does a types.Error anywhere in the chain (an IPAM delegate's,
// for one); the outermost wins. A deadline becomes "try again" (11), anything
// else 100. The codes 0 and 999, which say nothing, become 100 too.
func From(err error) *types.Error {
	if err == nil {
		return nil
	}
	var own *Error
	var obj *types.Error
	switch {
	case errors.As(err, &own):
		return within(err, own, own.object())
	case errors.As(err, &obj):
		c := *obj
		c.Code = legal(c.Code)
		return within(err, obj, &c)
	case errors.Is(err, context.DeadlineExceeded):
		return &types.Error{Code: CodeTryAgain, Msg: "the operation did not finish in time", Details: oneLine(err.Error())}
	}
	return &types.Error{Code: CodeKernel, Msg: oneLine(err.Error())}
}

// within keeps what was wrapped around the coded error (a device name, the
// other errors of a join) as details: the message stays short.
func within(outer, coded error, obj *types.Error) *types.Error {
	// A join of nothing else says the same.
	if outer != coded && outer.Error() != coded.Error() { //nolint:errorlint // identity is meant, not the chain
		obj.Details = oneLine(outer.Error())
	}
	return obj
}

func legal(code uint) uint {
	if code == types.ErrUnknown || code == types.ErrInternal {
		return CodeKernel
	}
	return code
}

func show(v any) string {
	switch v.(type) {
	case string, fmt.Stringer, error:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("%v", v)
}

func joinNonEmpty(a, b string) string {
	if a == "" {
		return b
	}
	return a + ": " + b
}

// oneLine folds the newlines of errors.Join, since many runtimes log one line. It escapes other control characters:
// the text of a value may come from a pod's annotation, and must not write lines of its own into a log.
func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ")
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, c := range s {
		if unicode.IsControl(c) {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}
