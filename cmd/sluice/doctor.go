// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
)

// Exit statuses of the doctor, besides 0 and the 1 of every command that fails.
const (
	exitWarnings = 2
	exitProblems = 3
)

// exitError ends a command with that status after it has said why itself.
type exitError int

func (s exitError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// findingView is one line of "doctor -o json".
type findingView struct {
	Check string `json:"check"` // heading of docs/troubleshooting.md
	Level string `json:"level"` // ok, info, warning or problem
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"`
}

// doctorView is what "doctor -o json" prints.
type doctorView struct {
	Worst    string        `json:"worst"`
	Findings []findingView `json:"findings"`
}

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with this node, and what to do",
		Long: `Say what is wrong with this node, and what to do: one line for each finding.

It looks at the kernel's features, the programs on each device, programs of
others, FORWARD policies, sysctls, the connection table, and at what pods that
are gone have left, whichever suite made it. It changes nothing. What each
finding means is in docs/troubleshooting.md. -w also shows what is as it should
be; -o json always does.

Exit status: 0 nothing to do, 1 the doctor itself failed, 2 warnings,
3 problems (something does not work).`,
		Example: `  sluice doctor
  sluice doctor -w
  sluice doctor -o json | jq '.findings[] | select(.level == "problem")'`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			facts, err := a.ops.Facts(c.Context())
			if err != nil {
				return err
			}
			findings := doctor.Examine(facts)
			worst := doctor.Worst(findings)
			v := newDoctorView(findings)
			if err := a.print(v, func() error { return a.findings(v) }); err != nil {
				return err
			}
			switch worst {
			case doctor.Problem:
				return exitError(exitProblems)
			case doctor.Warning:
				return exitError(exitWarnings)
			}
			return nil
		},
	}
}

func newDoctorView(findings []doctor.Finding) doctorView {
	v := doctorView{Worst: string(doctor.Worst(findings)), Findings: []findingView{}}
	for _, f := range findings {
		v.Findings = append(v.Findings, findingView{f.Check, string(f.Level), f.Text, f.Do})
	}
	return v
}

// findings prints one line each: how bad, which check, what, and what to do.
func (a *app) findings(v doctorView) error {
	paint := map[string]func(string) string{
		string(doctor.OK): a.colours.green, string(doctor.Info): a.colours.plain, string(doctor.Warning): a.colours.yellow, string(doctor.Problem): a.colours.red,
	}
	n := map[string]int{}
	for _, f := range v.Findings {
		n[f.Level]++
		if f.Level == string(doctor.OK) && !a.wide {
			continue
		}
		line := fmt.Sprintf("%s  %s: %s", paint[f.Level](fmt.Sprintf("%-7s", f.Level)), a.colours.bold(f.Check), strings.ReplaceAll(f.Text, "\n", "; "))
		if f.Do != "" {
			line += a.colours.dim(" -> ") + f.Do
		}
		if err := a.say("%s", line); err != nil {
			return err
		}
	}
	return a.say("%s, %s, %s as it should be", plural(n[string(doctor.Problem)], "problem"), plural(n[string(doctor.Warning)], "warning"), plural(n[string(doctor.OK)], "check"))
}
