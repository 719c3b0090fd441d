// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ls: -l -a -d -n -1. The long form is that of coreutils, devices as "major, minor".
func ls(args []string) int {
	options, paths := split(args, "")
	if len(paths) == 0 {
		paths = []string{"."}
	}
	code, headed := 0, len(paths) > 1
	for _, path := range paths {
		if err := lsOne(path, options, headed); err != nil {
			code = fail("ls", err) + 1
		}
	}
	return code
}

func lsOne(path string, options map[rune]string, headed bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || options['d'] != "" {
		show(path, path, info, options)
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if headed {
		fmt.Println(path + ":")
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") && options['a'] == "" {
			continue
		}
		if info, err := entry.Info(); err == nil {
			show(entry.Name(), filepath.Join(path, entry.Name()), info, options)
		}
	}
	return nil
}

func show(name, path string, info fs.FileInfo, options map[rune]string) {
	if options['l'] == "" && options['n'] == "" {
		fmt.Println(name)
		return
	}
	system := info.Sys().(*syscall.Stat_t)
	size := strconv.FormatInt(info.Size(), 10)
	if info.Mode()&os.ModeDevice != 0 {
		size = fmt.Sprintf("%d, %d", major(system.Rdev), minor(system.Rdev))
	}
	if target, err := os.Readlink(path); err == nil {
		name += " -> " + target
	}
	fmt.Printf("%s %d %s %s %s %s %s\n", modeText(info.Mode()), system.Nlink, owner(system.Uid),
		owner(system.Gid), size, info.ModTime().Format("Jan _2 15:04"), name)
}

func owner(number uint32) string {
	if number == 0 {
		return "root"
	}
	return strconv.Itoa(int(number))
}

// Linux' split of a device number, as the C library's macros do it.
func major(device uint64) uint64 { return (device>>8)&0xfff | (device>>32)&^0xfff }
func minor(device uint64) uint64 { return device&0xff | (device>>12)&^0xff }
func join(major, minor uint64) uint64 {
	return (major&0xfff)<<8 | (major&^0xfff)<<32 | minor&0xff | (minor&^0xff)<<12
}

func modeText(mode fs.FileMode) string {
	kind := "-"
	switch {
	case mode&os.ModeCharDevice != 0:
		kind = "c"
	case mode&os.ModeDevice != 0:
		kind = "b"
	case mode.IsDir():
		kind = "d"
	case mode&os.ModeSymlink != 0:
		kind = "l"
	case mode&os.ModeSocket != 0:
		kind = "s"
	case mode&os.ModeNamedPipe != 0:
		kind = "p"
	}
	text := kind + mode.Perm().String()[1:]
	if mode&os.ModeSticky != 0 {
		text = text[:9] + "t"
	}
	return text
}

// stat: -c FORMAT with %n %s %a %F %t %T %u %g %i %A; -L follows links.
func stat(args []string) int {
	options, paths := split(args, "c")
	format, given := options['c']
	if !given {
		format = "%n: %F, mode %a, size %s, owner %u:%g, device %t,%T"
	}
	code := 0
	for _, path := range paths {
		look := os.Lstat
		if options['L'] != "" {
			look = os.Stat
		}
		info, err := look(path)
		if err != nil {
			code = fail("stat", err)
			continue
		}
		fmt.Println(statText(format, path, info))
	}
	return code
}

func statText(format, path string, info fs.FileInfo) string {
	system := info.Sys().(*syscall.Stat_t)
	return strings.NewReplacer(
		"%n", path, "%s", strconv.FormatInt(info.Size(), 10), "%a", strconv.FormatUint(uint64(system.Mode&0o7777), 8),
		"%F", kindText(info.Mode()), "%t", strconv.FormatUint(major(system.Rdev), 16),
		"%T", strconv.FormatUint(minor(system.Rdev), 16), "%u", strconv.Itoa(int(system.Uid)),
		"%g", strconv.Itoa(int(system.Gid)), "%i", strconv.FormatUint(system.Ino, 10), "%A", modeText(info.Mode()),
		"%%", "%").Replace(format)
}

func kindText(mode fs.FileMode) string {
	kinds := map[byte]string{'-': "regular file", 'd': "directory", 'l': "symbolic link", 's': "socket",
		'c': "character special file", 'b': "block special file", 'p': "fifo"}
	return kinds[modeText(mode)[0]]
}

func mkdir(args []string) int {
	options, paths := split(args, "m")
	make := os.Mkdir
	if options['p'] != "" {
		make = os.MkdirAll
	}
	return forEach("mkdir", paths, func(path string) error { return make(path, 0o755) })
}

func rm(args []string) int {
	options, paths := split(args, "")
	remove := os.Remove
	if options['r'] != "" {
		remove = os.RemoveAll
	}
	return forEach("rm", paths, func(path string) error {
		err := remove(path)
		if os.IsNotExist(err) && options['f'] != "" {
			return nil
		}
		return err
	})
}

func touch(args []string) int {
	_, paths := split(args, "")
	return forEach("touch", paths, func(path string) error {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		now := time.Now()
		file.Close()
		return os.Chtimes(path, now, now)
	})
}

func readlink(args []string) int {
	options, paths := split(args, "")
	read := os.Readlink
	if options['f'] != "" {
		read = filepath.EvalSymlinks
	}
	return forEach("readlink", paths, func(path string) error {
		target, err := read(path)
		if err == nil {
			fmt.Println(target)
		}
		return err
	})
}

// mknod PATH c|b MAJOR MINOR.
func mknod(args []string) int {
	if len(args) != 4 {
		return fail("mknod", fmt.Errorf("usage: mknod PATH c|b MAJOR MINOR"))
	}
	kind := uint32(syscall.S_IFCHR)
	if args[1] == "b" {
		kind = syscall.S_IFBLK
	}
	first, err := strconv.ParseUint(args[2], 10, 32)
	if err != nil {
		return fail("mknod", err)
	}
	second, err := strconv.ParseUint(args[3], 10, 32)
	if err != nil {
		return fail("mknod", err)
	}
	if err := syscall.Mknod(args[0], kind|0o666, int(join(first, second))); err != nil {
		return fail("mknod", fmt.Errorf("%s: %w", args[0], err))
	}
	return 0
}

func forEach(command string, paths []string, do func(string) error) int {
	code := 0
	for _, path := range paths {
		if err := do(path); err != nil {
			code = fail(command, err)
		}
	}
	return code
}
