// SPDX-License-Identifier: Apache-2.0

// Package hostport tests published ports: who reaches them, who owns them,
// hairpin, conditions and allowed sources.
package hostport
