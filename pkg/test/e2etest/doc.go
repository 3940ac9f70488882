// SPDX-License-Identifier: Apache-2.0

// Package e2etest is what the end-to-end tests share: a World of netlab with the
// real plugins, networks and pods on it, servers that say who asks, and
// conversations with them. The packages below test/e2e use it, nothing else
// does. It calls the binaries only, never the code of a plugin or the loader.
package e2etest
