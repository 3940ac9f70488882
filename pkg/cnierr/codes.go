// SPDX-License-Identifier: Apache-2.0

package cnierr

import "github.com/containernetworking/cni/pkg/types"

// Codes of the CNI specification ("Error", "STATUS"). Codes 0-99 belong to the
// specification, 100 and above to the plugin.
const (
	// CodeIncompatibleVersion: the configuration's cniVersion is not served.
	CodeIncompatibleVersion = types.ErrIncompatibleCNIVersion
	// CodeUnsupported: a field or value is understood but not supported; the
	// message names key and value.
	CodeUnsupported = types.ErrUnsupportedField
	// CodeEnvironment: a CNI_* variable is missing or malformed.
	CodeEnvironment = types.ErrInvalidEnvironmentVariables
	// CodeIO: stdin, stdout or a file the configuration names cannot be used.
	CodeIO = types.ErrIOFailure
	// CodeDecode: the configuration (or a prevResult) is not what JSON or the
	// specification's types allow.
	CodeDecode = types.ErrDecodingFailure
	// CodeConfig: the configuration is readable and wrong; the message names
	// key and value.
	CodeConfig = types.ErrInvalidNetworkConfig
	// CodeNetNS: CNI_NETNS does not exist, is no namespace, or is our own.
	CodeNetNS = types.ErrInvalidNetNS
	// CodeTryAgain: the same call may succeed later.
	CodeTryAgain = types.ErrTryAgainLater
	// CodeUnavailable: STATUS only; an ADD would fail now.
	CodeUnavailable = types.ErrPluginNotAvailable
	// CodeDegraded: STATUS only; an ADD would fail now and running attachments
	// may be impaired.
	CodeDegraded = types.ErrLimitedConnectivity
)

// Sluice's own codes. docs/troubleshooting.md lists them for operators.
const (
	// CodeKernel: the kernel refused a change, or an error without a better code.
	CodeKernel uint = 100
	// CodeState: an attachment record or the allocation store is unusable.
	CodeState uint = 101
	// CodeCheck: CHECK found something else than what ADD made.
	CodeCheck uint = 102
	// CodeConflict: the thing exists already or belongs to another owner.
	CodeConflict uint = 103
	// CodeExhausted: no free address is left in a pool.
	CodeExhausted uint = 104
	// CodeNoDatapath: the requested backend cannot run on this node.
	CodeNoDatapath uint = 105
)
