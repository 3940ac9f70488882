// SPDX-License-Identifier: Apache-2.0

// Package tests walks packets through the BPF programs with BPF_PROG_TEST_RUN:
// one program and one direction per step, the output of a step being the input
// of the next. It holds tests only.
//
// A walk happens in a node (node_test.go): a network namespace with uplinks, pods
// and routes, for the FIB and the socket tables to speak of. Packets are described
// by fields and built by gopacket (frame_test.go); a reader of its own sums their
// checksums (model_test.go). What a test must choose or see and BPF_PROG_TEST_RUN
// cannot do goes through seams in the programs (seam_test.go) or through a small
// program in front of them (front_test.go). Each step compares the whole packet, its
// checksums, verdict, redirect, mark and every counter (walk_test.go).
//
// Random walks print their seed; -seed repeats one. -update writes the instruction
// budgets in testdata anew.
package tests
