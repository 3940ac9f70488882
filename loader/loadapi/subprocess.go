// SPDX-License-Identifier: Apache-2.0

package loadapi

import (
	"context"
	"encoding/json"
	"os"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

// kinds are the errors that callers tell apart.
var kinds = helperproc.ErrorCodes{"refused": ErrRefused, "incompatible": ErrIncompatible, "other-release": ErrOtherRelease}

// Names of the jobs.
const (
	jobProbe  = "probe"
	jobCookie = "cookie"
	jobPin    = "pin"
)

// Subprocess is the Loader that is a program of its own. The zero value is the one beside this process.
type Subprocess struct{ helperproc.Program }

var _ Loader = Subprocess{}

// Probe implements Loader.
func (p Subprocess) Probe(ctx context.Context) (answers []ProbeResult, err error) {
	err = p.Call(ctx, jobProbe, nil, &answers, nil, kinds)
	return answers, err
}

// NetnsCookie implements Loader.
func (p Subprocess) NetnsCookie(ctx context.Context, cgroup string) (cookie uint64, err error) {
	dir, err := os.Open(cgroup) // which may be a path of this process alone
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	err = p.Call(ctx, jobCookie, helperproc.File0, &cookie, dir, kinds)
	return cookie, err
}

// Pin implements Loader.
func (p Subprocess) Pin(ctx context.Context, o LoadRequest) (done LoadResult, err error) {
	err = p.Call(ctx, jobPin, o, &done, o.Lock, kinds)
	return done, err
}

// Jobs are what Subprocess asks for, done by w.
func Jobs(w Loader) map[string]helperproc.Job {
	return map[string]helperproc.Job{
		jobProbe: {ErrorCodes: kinds, Do: func(ctx context.Context, _ json.RawMessage) (any, error) { return w.Probe(ctx) }},
		jobCookie: {ErrorCodes: kinds, Do: func(ctx context.Context, in json.RawMessage) (any, error) {
			var cgroup string
			if err := json.Unmarshal(in, &cgroup); err != nil {
				return nil, err
			}
			return w.NetnsCookie(ctx, cgroup)
		}},
		jobPin: {ErrorCodes: kinds, Do: func(ctx context.Context, in json.RawMessage) (any, error) {
			var o LoadRequest
			if err := json.Unmarshal(in, &o); err != nil {
				return nil, err
			}
			return w.Pin(ctx, o)
		}},
	}
}
