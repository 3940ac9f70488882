// SPDX-License-Identifier: Apache-2.0

// Package privileges tests what the container of the node agent may do: its DaemonSet names capabilities, and the agent runs the
// operator's tool and the plugins with them. Only its tests have code.
package privileges
