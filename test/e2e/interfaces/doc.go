// SPDX-License-Identifier: Apache-2.0

// Package interfaces tests the main plugins besides bridge, flannel, and a
// third party's main plugin.
package interfaces
