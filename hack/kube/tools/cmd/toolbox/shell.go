// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// sh: [-eux] [-c script [name]] | [file]; standard input otherwise, with a
// prompt when that is a terminal. Traps for signals are not supported: the
// shell ends at SIGTERM.
func sh(args []string) int {
	options, rest := split(args, "c")
	var set []string
	for _, letter := range "eux" {
		if options[letter] != "" {
			set = append(set, "-"+string(letter))
		}
	}
	if script, given := options['c']; given {
		return run(script, "sh", append(append(set, "--"), tailOf(rest)...))
	}
	if len(rest) > 0 {
		script, err := os.ReadFile(rest[0])
		if err != nil {
			return fail("sh", err)
		}
		return run(string(script), rest[0], append(append(set, "--"), rest[1:]...))
	}
	return fromInput(set)
}

func tailOf(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	return words[1:]
}

func newRunner(params []string) (*interp.Runner, error) {
	return interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.Params(params...))
}

func run(script, name string, params []string) int {
	program, err := syntax.NewParser().Parse(stringReader(script), name)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: %v\n", err)
		return 2
	}
	runner, err := newRunner(params)
	if err != nil {
		return fail("sh", err)
	}
	return exitCode(runner.Run(context.Background(), program))
}

func exitCode(err error) int {
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	default:
		return fail("sh", err)
	}
}

func fromInput(params []string) int {
	runner, err := newRunner(append(params, "--"))
	if err != nil {
		return fail("sh", err)
	}
	prompt := ""
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		prompt = "# "
	}
	if prompt == "" {
		script, err := io.ReadAll(os.Stdin)
		if err != nil {
			return fail("sh", err)
		}
		return run(string(script), "sh", append(params, "--"))
	}
	return converse(runner, prompt)
}

func converse(runner *interp.Runner, prompt string) int {
	code := 0
	fmt.Print(prompt)
	err := syntax.NewParser().Interactive(os.Stdin, func(statements []*syntax.Stmt) bool {
		for _, statement := range statements {
			code = exitCode(runner.Run(context.Background(), statement))
			if runner.Exited() {
				return false
			}
		}
		fmt.Print(prompt)
		return true
	})
	if err != nil {
		return fail("sh", err)
	}
	return code
}

// builtin makes a command out of one that the shell has inside.
func builtin(name string) func([]string) int {
	return func(args []string) int {
		return run(name+` "$@"`, name, append([]string{"--"}, args...))
	}
}
