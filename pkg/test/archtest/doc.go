// SPDX-License-Identifier: Apache-2.0

// Package archtest holds the tests that guard the shape of the tree: who may import what, what a program may link, that links of
// pages lead somewhere, that every package says what it is for, that no file is too long, and that every file names its licence.
// It exports nothing; it runs the go command and reads the working tree, and needs no privileges.
package archtest
