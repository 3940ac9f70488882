// SPDX-License-Identifier: Apache-2.0

// Package runtimes runs real container runtimes with the plugins under test: what they write as configurations, in which
// order they call the verbs, and what they expect to be gone afterwards is theirs, not ours.
package runtimes
