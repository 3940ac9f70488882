// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"strings"

	"github.com/sluice-cni/sluice/pkg/log"
)

// levels are whereabouts' words for levels. Its "panic" logs nothing that does not end the program, and so do errors here.
var levels = map[string]string{"debug": "debug", "verbose": "info", "error": "error", "panic": "error"}

// Logs reports whether the configuration asks for a log of its own.
func (c *Config) Logs() bool { return c.LogFile != "" || c.LogLevel != "" }

// Logger returns a logger that writes to base, and to log_file at log_level. As with whereabouts all is logged if no level
// is named, and a level that is not known does not keep a pod from starting.
func (c *Config) Logger(base *log.Logger, fields ...log.Field) *log.Logger {
	if !c.Logs() {
		return base
	}
	level, ok := levels[strings.ToLower(c.LogLevel)]
	if !ok {
		level = "debug"
		if c.LogLevel != "" {
			base.Warn("ipam.log_level is not known: it is debug, verbose, error or panic; debug is used", log.String(log.KeyValue, c.LogLevel))
		}
	}
	return base.Beside(log.Options{Level: level, File: c.LogFile}, fields...)
}
