// SPDX-License-Identifier: Apache-2.0

// Package uplinks tests nodes whose uplinks are unusual, come late, or change.
package uplinks
