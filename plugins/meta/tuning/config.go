// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// settings are the keys that a configuration and args.cni share. A nil pointer
// is an absent key.
type settings struct {
	Sysctl   json.RawMessage `json:"sysctl"`
	MAC      *string         `json:"mac"`
	Promisc  *bool           `json:"promisc"`
	MTU      *int            `json:"mtu"`
	AllMulti *bool           `json:"allmulti"`
	TxQLen   *int            `json:"txQLen"`
}

type netConf struct {
	cniconf.Common
	settings
	DataDir string `json:"dataDir"`
}

// wanted is what an ADD has to make true.
type wanted struct {
	conf     *netConf
	prev     *types100.Result // nil on DEL, GC, STATUS
	dataDir  string
	sysctls  []sysctlPair // in the order of spreadFirst, so that every ADD does the same
	mac      net.HardwareAddr
	promisc  bool
	mtu      int // 0: leave
	allMulti *bool
	txQLen   *int
}

type sysctlPair struct {
	given string // key as written
	path  string // below /proc/sys, with the interface's name
	value string
}

func (w *wanted) link() bool {
	return w.mac != nil || w.promisc || w.mtu != 0 || w.allMulti != nil || w.txQLen != nil
}

// parse reads a configuration and everything that can change it, for the
// interface ifname. The order of precedence for the MAC is upstream's:
// configuration, CNI_ARGS, runtimeConfig, args.cni.
func parse(stdin []byte, containerID, cniArgs, ifname string) (*wanted, error) {
	c := &netConf{}
	if err := cniconf.Load(stdin, c); err != nil {
		return nil, err
	}
	w := &wanted{conf: c, dataDir: c.DataDir}
	if w.dataDir == "" {
		w.dataDir = DefaultDataDir
	}
	if !filepath.IsAbs(w.dataDir) {
		return nil, cnierr.Config("dataDir", w.dataDir, "must be an absolute path")
	}
	var args struct {
		CNI settings `json:"cni"`
	}
	if err := cniconf.DecodeSection("args", c.Args, &args); err != nil {
		return nil, err
	}
	if !cniconf.Awaits(stdin, containerID, "mac") {
		if err := w.setMAC(cniArgs, args.CNI.MAC); err != nil {
			return nil, err
		}
	}
	if err := w.setLink(args.CNI); err != nil {
		return nil, err
	}
	return w, w.setSysctls(args.CNI.Sysctl, ifname)
}

func (w *wanted) setMAC(cniArgs string, fromArgs *string) error {
	key, mac := "mac", ""
	take := func(k, v string) { key, mac = k, v }
	if v := w.conf.MAC; v != nil && *v != "" {
		take("mac", *v)
	}
	err := cniconf.ParseArgs(cniArgs, map[string]func(string) error{"MAC": func(v string) error {
		if v != "" {
			take("CNI_ARGS MAC", v)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	var rc struct {
		MAC string `json:"mac"`
	}
	if err := cniconf.DecodeSection("runtimeConfig", w.conf.RuntimeConfig, &rc); err != nil {
		return err
	}
	if rc.MAC != "" {
		take("runtimeConfig.mac", rc.MAC)
	}
	if fromArgs != nil { // an empty one unsets it
		take("args.cni.mac", *fromArgs)
	}
	if mac == "" {
		return nil
	}
	w.mac, err = cniconf.ParseMAC(key, mac)
	return err
}

// or returns the pointer that args.cni gives, else the configuration's, and the
// name of the key it came from.
func or[T any](key string, conf, args *T) (string, *T) {
	if args != nil {
		return "args.cni." + key, args
	}
	return key, conf
}

func (w *wanted) setLink(args settings) error {
	if _, v := or("promisc", w.conf.Promisc, args.Promisc); v != nil {
		w.promisc = *v
	}
	_, w.allMulti = or("allmulti", w.conf.AllMulti, args.AllMulti)
	key, mtu := or("mtu", w.conf.MTU, args.MTU)
	if mtu != nil {
		w.mtu = *mtu
	}
	if err := inRange(key, mtu, math.MaxInt32); err != nil {
		return err
	}
	key, w.txQLen = or("txQLen", w.conf.TxQLen, args.TxQLen)
	return inRange(key, w.txQLen, math.MaxUint32)
}

// inRange refuses what the kernel's 32 bits would make another number of.
func inRange(key string, v *int, most int64) error {
	switch {
	case v == nil:
		return nil
	case *v < 0:
		return cnierr.Config(key, *v, "must not be negative")
	case int64(*v) > most:
		return cnierr.Config(key, *v, fmt.Sprintf("must not be more than %d", most))
	}
	return nil
}

func (w *wanted) setSysctls(fromArgs json.RawMessage, ifname string) error {
	all := map[string]string{}
	for _, part := range []struct {
		key string
		raw json.RawMessage
	}{{"sysctl", w.conf.settings.Sysctl}, {"args.cni.sysctl", fromArgs}} {
		if err := noDuplicates(part.key, part.raw); err != nil {
			return err
		}
		var m map[string]string
		if err := cniconf.DecodeSection(part.key, part.raw, &m); err != nil {
			return err
		}
		for k, v := range m {
			all[k] = v
		}
	}
	for k, v := range all {
		p, err := sysctlPath(k, ifname)
		if err != nil {
			return err
		}
		w.sysctls = append(w.sysctls, sysctlPair{given: k, path: p, value: v})
	}
	slices.SortFunc(w.sysctls, func(a, b sysctlPair) int {
		if d := spreadFirst(a.path, b.path); d != 0 {
			return d
		}
		return strings.Compare(a.given, b.given)
	})
	return w.refuseContradiction()
}

// refuseContradiction: one parameter spelled in two ways must get one value,
// since the author has no say in the order of writing.
func (w *wanted) refuseContradiction() error {
	seen := map[string]sysctlPair{}
	for _, s := range w.sysctls {
		if o, ok := seen[s.path]; ok && !sysctl.Equal(o.value, s.value) {
			return cnierr.Config("sysctl."+s.given, s.value, fmt.Sprintf("%q gives the same parameter the value %q", o.given, o.value))
		}
		seen[s.path] = s
	}
	return nil
}

// sysctlPath turns a key ("net.ipv4.conf.IFNAME.arp_filter") into a path below
// /proc/sys. Only parameters of the network namespace may be set.
func sysctlPath(key, ifname string) (string, error) {
	p := strings.ReplaceAll(key, ".", "/")
	// An interface's name may hold a dot, so it comes after the separators.
	p = path.Clean("/" + strings.Replace(p, "IFNAME", ifname, 1))
	if !strings.HasPrefix(p, "/net/") {
		return "", cnierr.Config("sysctl", key, "only keys below net. belong to the pod's network namespace")
	}
	return p[1:], nil
}

// noDuplicates refuses an object that says one key twice: which one counts
// would be a guess. The decoder itself keeps the last.
func noDuplicates(what string, raw json.RawMessage) error {
	if len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return cnierr.New(cnierr.CodeDecode, fmt.Sprintf("%s is not an object of strings", what), "")
	}
	seen := map[string]bool{}
	for d.More() {
		t, _ := d.Token() // nil after an error
		key, isKey := t.(string)
		if !isKey {
			break // the decoder of the whole has the better message
		}
		if seen[key] {
			return cnierr.Config(what, key, "is duplicated")
		}
		seen[key] = true
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			break
		}
	}
	return nil //nolint:nilerr // what does not parse is the decoder of the whole to say
}
