// SPDX-License-Identifier: Apache-2.0

package fuzztest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// oddValues take the place of a value in turn: other types, the borders of numbers, names and addresses, and what
// means something to a path, a shell, iptables-restore or C.
var oddValues = []string{
	`null`, `true`, `0`, `-1`, `1`, `65536`, `4294967296`, `9223372036854775807`, `18446744073709551616`, `1e3`, `0.5`,
	`""`, `"x"`, `"1"`, `" "`, `"a b"`, `"-j"`, `"\u0000"`, `"a\u0000b"`, `"a\nb"`, `"."`, `".."`, `"../../../tmp/x"`, `"/"`, `"eth%d"`, `"\u00e0"`, `"\ud800"`,
	`"0123456789abcdef"`, `"0.0.0.0/0"`, `"::/0"`, `"10.0.0.0/33"`, `"10.0.0.1/8"`, `"::ffff:10.0.0.1"`, `"::ffff:10.0.0.0/104"`, `"fe80::1%eth0"`,
	`"ff:ff:ff:ff:ff:ff"`, `"02:00:00:00:00:01"`, `[]`, `[null]`, `[[]]`, `[{}]`, `["x","x"]`, `{}`, `{"":null}`, `{"type":"x"}`,
	`[{"dst":"0.0.0.0/0","gw":"10.0.0.1","mtu":-1,"table":-1,"scope":256}]`,
}

// Odd returns variants of a JSON document: each value in it replaced by every odd one, each key left out, written
// twice, and in capitals.
func Odd(tb testing.TB, doc string) []string {
	tb.Helper()
	var v any
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		tb.Fatalf("%s: %v", doc, err)
	}
	var out []string
	vary(v, func(s string) { out = append(out, s) })
	return out
}

// vary yields each variant of v as text.
func vary(v any, yield func(string)) {
	for _, odd := range oddValues {
		yield(odd)
	}
	switch v := v.(type) {
	case map[string]any:
		varyObject(v, yield)
	case []any:
		for i := range v {
			vary(v[i], func(s string) { yield("[" + strings.Join(replaced(v, i, s), ",") + "]") })
		}
	}
}

func varyObject(o map[string]any, yield func(string)) {
	keys := slices.Sorted(maps.Keys(o))
	write := func(key string, members ...string) {
		for _, k := range keys {
			if k != key {
				members = append(members, member(k, text(o[k])))
			}
		}
		yield("{" + strings.Join(members, ",") + "}")
	}
	for _, key := range keys {
		write(key)
		write(key, member(strings.ToUpper(key), text(o[key])))
		write(key, member(key, text(o[key])), member(key, text(o[key])))
		vary(o[key], func(s string) { write(key, member(key, s)) })
	}
}

func replaced(list []any, at int, by string) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = text(list[i])
	}
	out[at] = by
	return out
}

func member(key, value string) string { return fmt.Sprintf("%s:%s", text(key), value) }

// text is v as JSON, which v was.
func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// cniArgs are values of CNI_ARGS: those of kubelet, of podman and of hand-written calls, and broken ones.
var cniArgs = []string{
	"", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=0a1b;K8S_POD_UID=7",
	"IgnoreUnknown=true;MAC=02:00:00:00:00:01;IP=10.88.0.9", "IP=10.0.0.7/24,fd00::7/64;GATEWAY=10.0.0.1", "MAC=", "IP=", "IP=;IP=10.0.0.9",
	"=", ";", "MAC", "MAC=a=b", "IgnoreUnknown=maybe", "K8S_POD_NAME=x", "IgnoreUnknown=1;MAC=ff:ff:ff:ff:ff:ff", "MAC=\x00",
}

// AddConfigurations seeds a target that takes stdin and CNI_ARGS with the configurations of a plugin and more of the
// caller's, their odd variants, and the values of CNI_ARGS.
func AddConfigurations(f *testing.F, plugin string, more ...string) {
	f.Helper()
	for _, conf := range append(Configurations(f, plugin), more...) {
		for _, args := range cniArgs {
			f.Add([]byte(conf), args)
		}
	}
	for _, conf := range append(richest(Configurations(f, plugin)), more...) {
		for _, odd := range Odd(f, conf) {
			f.Add([]byte(odd), "")
		}
	}
}

// AddStdin is AddConfigurations for a target that takes stdin only.
func AddStdin(f *testing.F, plugin string, more ...string) {
	f.Helper()
	for _, conf := range append(Configurations(f, plugin), more...) {
		f.Add([]byte(conf))
	}
	for _, conf := range append(richest(Configurations(f, plugin)), more...) {
		for _, odd := range Odd(f, conf) {
			f.Add([]byte(odd))
		}
	}
}

// richest are the two longest: they have most keys.
func richest(confs []string) []string {
	longest := slices.SortedFunc(slices.Values(confs), func(a, b string) int { return len(b) - len(a) })
	return longest[:min(2, len(longest))]
}
