// SPDX-License-Identifier: Apache-2.0

package stateful

// difference is a deliberate one. Its fields but the last are patterns of path.Match, empty for any; upstream is no pattern.
type difference struct {
	ruleset, scenario, trial, what, upstream, ours string
	reason                                         string
}

// differences are those that the suite lets pass. What is not listed here is a defect.
var differences = []difference{
	{what: "entry after the end", upstream: "closed", ours: "none", reason: "A connection that has ended may be forgotten at once: it counts nowhere, and nothing of it comes any more."},
}
