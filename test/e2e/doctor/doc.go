// SPDX-License-Identifier: Apache-2.0

// Package doctor tests what "sluice doctor" says of a node, and that its advice
// helps.
package doctor
