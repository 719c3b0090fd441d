// SPDX-License-Identifier: Apache-2.0

// runc-without-seccomp stands before runc. Kubelets ask for a seccomp filter in
// each pod's sandbox, and runc refuses it unless linked with a C library that a
// machine with a bare compiler does not have. A cluster for development does
// without filters: they are taken out of the container's description here.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	if bundle, creates := bundleOf(os.Args[1:]); creates {
		if err := strip(filepath.Join(bundle, "config.json")); err != nil {
			fail(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	// Not the resolved path: the programs lie in folders of their own, their links in one.
	runc := filepath.Join(filepath.Dir(os.Args[0]), "runc")
	if !filepath.IsAbs(runc) {
		runc = filepath.Join(filepath.Dir(self), "runc")
	}
	fail(syscall.Exec(runc, append([]string{"runc"}, os.Args[1:]...), os.Environ()))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "runc-without-seccomp:", err)
	os.Exit(1)
}

// bundleOf finds the folder of a container that is to be created.
func bundleOf(args []string) (string, bool) {
	if !slices.Contains(args, "create") && !slices.Contains(args, "run") {
		return "", false
	}
	for _, flag := range []string{"--bundle", "-b"} {
		if at := slices.Index(args, flag); at >= 0 && at+1 < len(args) {
			return args[at+1], true
		}
	}
	return ".", true
}

func strip(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// Numbers stay as written: some do not fit a float.
	var spec, linux map[string]json.RawMessage
	if err := json.Unmarshal(text, &spec); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil || linux["seccomp"] == nil {
		return err
	}
	delete(linux, "seccomp")
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
