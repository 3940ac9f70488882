// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/log"
)

// whereabouts' words for levels, and what a wrong one or a wrong path does.
func TestLog(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]string{
		"": "debug info error", "debug": "debug info error", "Verbose": "info error", "error": "error", "panic": "error", "loud": "debug info error",
	} {
		path := filepath.Join(t.TempDir(), "log")
		l := (&Config{LogFile: path, LogLevel: level}).Logger(log.NewNop(), log.String("pod", "ns/p"))
		l.Debug("debug")
		l.Info("info")
		l.Error("error")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, `"pod":"ns/p"`) {
				t.Errorf("%q: %s", level, line)
			}
			for _, w := range []string{"debug", "info", "error"} {
				if strings.Contains(line, `"msg":"`+w+`"`) {
					got = append(got, w)
				}
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v", level, got)
		}
	}
	(&Config{LogFile: "/no/such/dir/log"}).Logger(log.NewNop()).Error("still no panic")
	base := log.NewNop()
	if (&Config{}).Logger(base) != base {
		t.Error("a configuration without keys has a log of its own")
	}
}
