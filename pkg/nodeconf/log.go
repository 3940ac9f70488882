// SPDX-License-Identifier: Apache-2.0

package nodeconf

import "github.com/sluice-cni/sluice/pkg/log"

// NewLog logs as the node's configuration says. A mistake in that file is reported by the verbs that need it; the log then goes
// to stderr.
func NewLog() *log.Logger {
	conf, err := Load(DefaultPath)
	if err != nil {
		conf = Default()
	}
	return log.New(log.Options{Level: conf.Log.Level, File: conf.Log.File})
}
