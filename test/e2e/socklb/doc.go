// SPDX-License-Identifier: Apache-2.0

// Package socklb tests socket LB: processes of the node that connect to a
// hostPort.
package socklb
