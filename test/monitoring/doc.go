// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests what Sluice brings for Prometheus and Grafana: alerts, runbooks and the dashboard. promtool and a Prometheus run.
package monitoring
