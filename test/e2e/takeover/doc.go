// SPDX-License-Identifier: Apache-2.0

// Package takeover tests nodes that change from upstream's plugins to Sluice
// and back, while pods run.
package takeover
