// SPDX-License-Identifier: Apache-2.0

// toolbox is the one program of the test image: a shell and the few commands
// that tests and demos use inside a container, chosen by the name it was
// started under. It is not a full POSIX user land; each command knows the
// options listed at its function.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

// applets run a command with its arguments and give its exit code.
var applets map[string]func(args []string) int

func init() {
	applets = map[string]func([]string) int{
		"cat": cat, "date": date, "env": env, "grep": grep, "head": head, "hostname": hostname, "id": id,
		"kill": kill, "ls": ls, "mkdir": mkdir, "mknod": mknod, "printenv": printenv, "readlink": readlink,
		"rm": rm, "sh": sh, "sleep": sleep, "sort": sortLines, "stat": stat, "tail": tail, "touch": touch,
		"uname": uname, "wc": wc,
	}
	for _, name := range []string{"echo", "false", "printf", "pwd", "test", "true", "["} {
		applets[name] = builtin(name)
	}
}

func main() {
	endOnSignal()
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name == "toolbox" && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	applet, known := applets[name]
	if !known {
		names := make([]string, 0, len(applets))
		for each := range applets {
			names = append(names, each)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "toolbox: start me as one of: %s\n", strings.Join(names, " "))
		os.Exit(127)
	}
	os.Exit(applet(args))
}

// endOnSignal ends the program even as process 1 of a container, for which the
// kernel drops signals without a handler.
func endOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() {
		received := <-signals
		os.Exit(128 + int(received.(syscall.Signal)))
	}()
}

// fail reports err as the command's own and gives the usual exit code.
func fail(command string, err error) int {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = fmt.Errorf("%s: %w", path.Path, path.Err)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", command, err)
	return 1
}

// split parts leading single-letter options from operands; letters in valued
// take the rest of the word or the next word as their value.
func split(args []string, valued string) (map[rune]string, []string) {
	options := map[rune]string{}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		word := args[0][1:]
		args = args[1:]
		if word == "-" {
			break
		}
		for at, letter := range word {
			if !strings.ContainsRune(valued, letter) {
				options[letter] = "yes"
				continue
			}
			value := word[at+1:]
			if value == "" && len(args) > 0 {
				value, args = args[0], args[1:]
			}
			options[letter] = value
			break
		}
	}
	return options, args
}

// each calls use with every named file, or standard input when none is named.
func each(command string, files []string, use func(name string, content io.Reader) error) int {
	if len(files) == 0 {
		files = []string{"-"}
	}
	code := 0
	for _, name := range files {
		if err := one(name, use); err != nil {
			code = fail(command, err)
		}
	}
	return code
}

func one(name string, use func(string, io.Reader) error) error {
	if name == "-" {
		return use("", os.Stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	return use(name, file)
}
