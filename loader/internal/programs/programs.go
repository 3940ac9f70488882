// SPDX-License-Identifier: Apache-2.0

// Package programs makes the sets of programs: it asks what the kernel can do, has programs verified and pinned, and adds those that a
// device needs later. It attaches nothing.
package programs
