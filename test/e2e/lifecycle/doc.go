// SPDX-License-Identifier: Apache-2.0

// Package lifecycle tests ADD, DEL, CHECK, GC and STATUS: failures, kills, bad
// input, many calls at once.
package lifecycle
