// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// PrevResult returns the prevResult of a configuration whose cniVersion is
// version, as the newest type. It returns nil without an error when there is
// none. A result without its own version has the configuration's; one of
// another generation (0.1-0.2, 0.3-0.4, 1.x) is an error with code 6, as is
// one with null entries, which no plugin could use.
func PrevResult(stdin []byte, version string) (*types100.Result, error) {
	var conf struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := Load(stdin, &conf); err != nil {
		return nil, err
	}
	return ParseResult("prevResult", conf.PrevResult, version)
}

// ParseResult is PrevResult for a result that was found under some other name.
func ParseResult(what string, raw json.RawMessage, version string) (*types100.Result, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil // "no result" is an answer, and no error
	}
	raw, err := completeVersion(what, raw, VersionOrDefault(version))
	if err != nil {
		return nil, err
	}
	res, err := create.Create(VersionOrDefault(version), raw)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeDecode, err, "decode %s", what)
	}
	newest, err := types100.NewResultFromResult(res)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeDecode, err, "convert %s", what)
	}
	return newest, nil
}

// completeVersion adds the version a result lacks and refuses null entries,
// on which the library's converters would panic.
func completeVersion(what string, raw json.RawMessage, version string) (json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := cnierr.Decode(what, raw, &all); err != nil {
		return nil, err
	}
	found := false
	for k, v := range all {
		// EqualFold knows what the decoder takes for the same name, as lower case does not (U+017F is an s).
		is := func(name string) bool { return strings.EqualFold(k, name) }
		switch {
		case is("cniVersion"):
			if string(v) == `""` || string(v) == "null" {
				delete(all, k)
			} else {
				found = true
			}
		case is("interfaces"), is("ips"), is("routes"):
			if err := noNulls(what+"."+k, v); err != nil {
				return nil, err
			}
		}
	}
	if found {
		return raw, nil
	}
	all["cniVersion"] = json.RawMessage(fmt.Sprintf("%q", version))
	out, err := json.Marshal(all)
	return out, cnierr.Wrap(cnierr.CodeDecode, err, "decode %s", what)
}

func noNulls(what string, raw json.RawMessage) error {
	var list []json.RawMessage
	if err := cnierr.Decode(what, raw, &list); err != nil {
		return err
	}
	for i, e := range list {
		if string(e) == "null" {
			return cnierr.New(cnierr.CodeDecode, fmt.Sprintf("decode %s: entry %d is null", what, i), "")
		}
	}
	return nil
}

// Convert returns the result in a configuration's version (absent = 0.1.0).
// Call it with the planned result before the first effect: 0.1.0 and 0.2.0
// cannot represent a result without an address, and an ADD that finds out
// after its work has to undo it. The error has code 2.
func Convert(result *types100.Result, version string) (types.Result, error) {
	version = VersionOrDefault(version)
	c := *result
	c.CNIVersion = types100.ImplementedSpecVersion
	out, err := c.GetAsVersion(version)
	if err != nil {
		return nil, cnierr.Unsupported("cniVersion", version, "the result cannot be represented: "+err.Error())
	}
	return out, nil
}
