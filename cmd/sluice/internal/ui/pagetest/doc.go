// SPDX-License-Identifier: Apache-2.0

// Package pagetest looks at the page of "sluice ui" in a headless Chromium: with fixed data, where screenshots are compared and axe-core
// looks for what people with a screen reader or a keyboard could not use, and on a node with pods. "-update" draws the pictures anew.
package pagetest
