// SPDX-License-Identifier: Apache-2.0

// Package parity tests that every backend behaves as upstream does, cell by
// cell, and writes docs/dev/parity.md.
package parity
