// SPDX-License-Identifier: Apache-2.0

// Package endpoint is the typed view of the maps about pods: their addresses and their counters.
package endpoint

import "github.com/sluice-cni/sluice/pkg/bpfobj"

// Flags of an endpoint.
const (
	FlagMasquerade = uint32(bpfobj.TypesSlEndpointFlagSL_EP_MASQUERADE)
	FlagAdmit      = uint32(bpfobj.TypesSlEndpointFlagSL_EP_ADMIT)
	FlagPublish    = uint32(bpfobj.TypesSlEndpointFlagSL_EP_PUBLISH)
)
