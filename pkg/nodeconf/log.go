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
	return conf.NewLog()
}

// NewLog returns a logger as the configuration wants it.
func (c *Config) NewLog() *log.Logger {
	return log.New(log.Options{Level: c.Log.Level, File: c.Log.File})
}
