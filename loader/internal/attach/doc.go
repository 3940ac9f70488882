// SPDX-License-Identifier: Apache-2.0

// Package attach puts programs on devices, on the cgroup root and into XDP, and takes them away. It asks programs for what to
// attach. It does not decide which device gets what: package loader does.
package attach
