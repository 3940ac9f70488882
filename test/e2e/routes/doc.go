// SPDX-License-Identifier: Apache-2.0

// Package routes tests pods on several nodes, joined by the routes of the node agent in each mode.
package routes
