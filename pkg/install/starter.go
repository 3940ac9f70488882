// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	scriptMark = "#!"
	// maxScript is what the kernel reads of a script's first line: BINPRM_BUF_SIZE of include/uapi/linux/binfmts.h, 256 bytes
	// since Linux 5.1. The line has to end within it.
	maxScript = 256
)

// Starter returns the content of a plugin's file: a script whose interpreter is the program (fs/binfmt_script.c). The kernel starts
// the program with the plugin's path as its first argument; PluginArgs finds it there. It costs no shell and no second process.
// It reports false for a path that the kernel cannot read as an interpreter: a long one, or one with white space.
func Starter(program string) ([]byte, bool) {
	line := scriptMark + program + "\n"
	if len(line) > maxScript || strings.ContainsAny(program, " \t\r\n\x00") || !filepath.IsAbs(program) {
		return nil, false
	}
	return []byte(line), true
}

// Interpreter returns the program that the plugin's file at path starts, and "" when the file is no starter.
func Interpreter(path string, info os.FileInfo) string {
	if info.Size() > maxScript {
		return ""
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	program, ok := strings.CutPrefix(string(content), scriptMark)
	if !ok {
		return ""
	}
	program, _, _ = strings.Cut(program, "\n")
	return program
}

// PluginArgs returns the process' arguments as if the plugin's file were the program itself: args[0] is the plugin's path. args are
// the process' own arguments. A process that a starter began has the program's path before them.
func PluginArgs(args []string) []string {
	if len(args) < 2 || !filepath.IsAbs(args[0]) {
		return args
	}
	program, plugin := filepath.Base(args[0]), filepath.Base(args[1])
	for _, p := range Programs() {
		if p.Name == program && strings.ContainsRune(args[1], '/') && slices.Contains(p.Plugins, plugin) {
			return args[1:]
		}
	}
	return args
}
