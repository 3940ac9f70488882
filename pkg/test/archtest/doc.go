// SPDX-License-Identifier: Apache-2.0

// Package archtest holds the tests that guard the shape of the tree: who may
// import what, what the plugin binary may link, that every package says what it
// is for and that every file names its licence. It exports nothing; it runs the
// go command and reads the working tree, and needs no privileges.
package archtest
