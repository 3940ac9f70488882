// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Changes of rule sets come in groups: kube-proxy writes a table for each family, an administrator's script rule by rule.
const (
	rulesSettle = 50 * time.Millisecond // a group is one change
	rulesPause  = time.Second           // between two walks over the connections
)

func (a *app) relearn(ctx context.Context, f *flowFilter) error {
	return a.flush(ctx, f, func(flowView) bool { return true }, loader.Interface.RelearnFlows, "take the slow path until they are confirmed again")
}

// followRules is "conntrack relearn --follow". The datapath is opened for each change: another build may have replaced it.
func (a *app) followRules(ctx context.Context, f *flowFilter) error {
	w, err := rtnl.WatchRuleSets()
	if err != nil {
		return err
	}
	defer w.Close()
	changes, failed := make(chan struct{}, 1), make(chan error, 1)
	changes <- struct{}{} // what has changed before it began to listen
	go func() {
		for {
			if err := w.Wait(ctx); err != nil {
				failed <- err
				return
			}
			select {
			case changes <- struct{}{}:
			default: // one is waiting, and is for this one too
			}
		}
	}()
	for {
		select {
		case err := <-failed:
			if errors.Is(err, ctx.Err()) {
				return nil // interrupted
			}
			return err
		case <-changes:
		}
		pause(ctx, rulesSettle)
		select {
		case <-changes:
		default:
		}
		if err := a.relearn(ctx, f); err != nil && ctx.Err() == nil {
			return err
		}
		pause(ctx, rulesPause)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
