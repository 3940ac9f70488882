// SPDX-License-Identifier: Apache-2.0

// Package bandwidth tests the bandwidth plugin on pods whose limits work inside
// their netns (podns), and on ptp.
package bandwidth
