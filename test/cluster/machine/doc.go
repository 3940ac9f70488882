// SPDX-License-Identifier: Apache-2.0

// Package machine makes machines of namespaces for test/cluster: a process that is the first one of its own network, mount, PID, UTS, IPC
// and cgroup namespaces, above an overlay of the real machine's files. It starts, stops and reaps what runs inside.
//
// All that a machine writes is in memory of its own and ends with its first process. On the real machine it leaves a folder with logs and
// empty cgroups, which Remove removes. Processes are found by pid and start time, never by name.
package machine
