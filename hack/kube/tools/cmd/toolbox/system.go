// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// env: [NAME=VALUE]... [COMMAND [ARG]...].
func env(args []string) int {
	for len(args) > 0 && strings.Contains(args[0], "=") {
		name, value, _ := strings.Cut(args[0], "=")
		os.Setenv(name, value)
		args = args[1:]
	}
	if len(args) == 0 {
		return printenv(nil)
	}
	program, err := exec.LookPath(args[0])
	if err == nil {
		err = syscall.Exec(program, args, os.Environ())
	}
	return fail("env", err) + 126
}

func printenv(args []string) int {
	if len(args) == 0 {
		fmt.Println(strings.Join(os.Environ(), "\n"))
		return 0
	}
	code := 0
	for _, name := range args {
		value, set := os.LookupEnv(name)
		if !set {
			code = 1
			continue
		}
		fmt.Println(value)
	}
	return code
}

// sleep: seconds, with fraction and suffix s m h d, or "infinity".
func sleep(args []string) int {
	total := time.Duration(0)
	for _, word := range args {
		one, err := duration(word)
		if err != nil {
			return fail("sleep", err)
		}
		total += one
	}
	time.Sleep(total)
	return 0
}

func duration(word string) (time.Duration, error) {
	if word == "infinity" || word == "inf" {
		return math.MaxInt64, nil
	}
	unit := time.Second
	for suffix, each := range map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour} {
		if strings.HasSuffix(word, suffix) {
			word, unit = strings.TrimSuffix(word, suffix), each
			break
		}
	}
	number, err := strconv.ParseFloat(word, 64)
	if err != nil || number < 0 {
		return 0, fmt.Errorf("invalid time %q", word)
	}
	return time.Duration(number * float64(unit)), nil
}

// date: seconds since 1970 for +%s, else the time in RFC 3339.
func date(args []string) int {
	if len(args) > 0 && args[0] == "+%s" {
		fmt.Println(time.Now().Unix())
		return 0
	}
	fmt.Println(time.Now().UTC().Format(time.RFC3339))
	return 0
}

func hostname([]string) int {
	name, err := os.Hostname()
	if err != nil {
		return fail("hostname", err)
	}
	fmt.Println(name)
	return 0
}

// id: -u -g, else both.
func id(args []string) int {
	options, _ := split(args, "")
	switch {
	case options['u'] != "":
		fmt.Println(os.Getuid())
	case options['g'] != "":
		fmt.Println(os.Getgid())
	default:
		fmt.Printf("uid=%d gid=%d\n", os.Getuid(), os.Getgid())
	}
	return 0
}

// uname: -a -n -r, else the kernel's name.
func uname(args []string) int {
	options, _ := split(args, "")
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return fail("uname", err)
	}
	node, _ := os.Hostname()
	kernel := strings.TrimSpace(string(release))
	switch {
	case options['a'] != "":
		fmt.Println("Linux", node, kernel)
	case options['r'] != "":
		fmt.Println(kernel)
	case options['n'] != "":
		fmt.Println(node)
	default:
		fmt.Println("Linux")
	}
	return 0
}

// kill: [-NUMBER|-TERM|-KILL|-0] PID...
func kill(args []string) int {
	number := syscall.SIGTERM
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		known := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP}
		word := args[0][1:]
		if each, found := known[word]; found {
			number = each
		} else if each, err := strconv.Atoi(word); err == nil {
			number = syscall.Signal(each)
		} else {
			return fail("kill", fmt.Errorf("unknown signal %s", word))
		}
		args = args[1:]
	}
	return forEach("kill", args, func(word string) error {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return errors.New("not a process number: " + word)
		}
		return syscall.Kill(pid, number)
	})
}
