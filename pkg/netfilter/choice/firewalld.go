// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/firewalld"
)

// FirewalldRuns reports whether firewalld runs on the node. It is for verbs: it is asked at most once in lookEvery, for all callers, and
// where it is not installed, nothing is started.
func (n *Node) FirewalldRuns(ctx context.Context) bool {
	if !firewalld.MayRun() {
		return false
	}
	if runs, known := n.noted("firewalld", lookEvery); known {
		return runs
	}
	runs, err := AskFirewalld(ctx)
	if err != nil {
		n.env.Log.Warn("cannot ask whether firewalld runs", log.Error(err))
		return false // the next verb may have more luck
	}
	n.note("firewalld", runs)
	return runs
}

// AskFirewalld is FirewalldRuns for those who look, such as the operator's tool: it believes no earlier answer and keeps none.
func AskFirewalld(ctx context.Context) (bool, error) {
	if !firewalld.MayRun() {
		return false, nil
	}
	err := firewalld.Client{}.Usable(ctx)
	if errors.Is(err, netfilter.ErrUnusable) {
		return false, nil
	}
	return err == nil, err
}

// noted returns an answer that was noted not long ago. A clock that went back is long ago.
func (n *Node) noted(what string, every time.Duration) (answer, known bool) {
	path, err := fileOfNamespace(n.env.RunDir, what)
	if err != nil {
		return false, false
	}
	st, err := os.Stat(path)
	if err != nil {
		return false, false
	}
	if age := time.Since(st.ModTime()); age < 0 || age >= every {
		return false, false
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return false, false
	}
	answer, err = strconv.ParseBool(string(raw))
	return answer, err == nil
}

// note keeps an answer for noted. It saves work; that it cannot be written is no reason to fail.
func (n *Node) note(what string, answer bool) {
	path, err := fileOfNamespace(n.env.RunDir, what)
	if err != nil || os.MkdirAll(n.env.RunDir, 0o755) != nil {
		return
	}
	_ = os.WriteFile(path, strconv.AppendBool(nil, answer), 0o644)
}
