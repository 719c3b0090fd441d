// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

func stringReader(text string) io.Reader { return strings.NewReader(text) }

func cat(args []string) int {
	_, files := split(args, "")
	return each("cat", files, func(_ string, content io.Reader) error {
		_, err := io.Copy(os.Stdout, content)
		return err
	})
}

func lines(content io.Reader, use func(line string) bool) error {
	scanner := bufio.NewScanner(content)
	scanner.Buffer(make([]byte, 0, 64<<10), 16<<20)
	for scanner.Scan() {
		if !use(scanner.Text()) {
			return nil
		}
	}
	return scanner.Err()
}

// grep: -q -v -i -c -F -E -o -e pattern (expressions are Go's, near to -E).
func grep(args []string) int {
	options, rest := split(args, "e")
	expression, given := options['e']
	if !given {
		if len(rest) == 0 {
			return fail("grep", fmt.Errorf("no pattern")) + 1
		}
		expression, rest = rest[0], rest[1:]
	}
	if options['F'] != "" {
		expression = regexp.QuoteMeta(expression)
	}
	if options['i'] != "" {
		expression = "(?i)" + expression
	}
	pattern, err := regexp.Compile(expression)
	if err != nil {
		return fail("grep", err) + 1
	}
	total := 0
	code := each("grep", rest, func(name string, content io.Reader) error {
		found, err := grepOne(pattern, options, prefix(name, rest), content)
		total += found
		return err
	})
	switch {
	case code != 0:
		return 2
	case total == 0:
		return 1
	}
	return 0
}

func prefix(name string, files []string) string {
	if len(files) < 2 {
		return ""
	}
	return name + ":"
}

func grepOne(pattern *regexp.Regexp, options map[rune]string, before string, content io.Reader) (int, error) {
	found := 0
	silent := options['q'] != "" || options['c'] != ""
	err := lines(content, func(line string) bool {
		if pattern.MatchString(line) == (options['v'] != "") {
			return true
		}
		found++
		if silent {
			return true
		}
		if options['o'] != "" {
			line = strings.Join(pattern.FindAllString(line, -1), "\n")
		}
		fmt.Println(before + line)
		return true
	})
	if options['c'] != "" {
		fmt.Println(before + strconv.Itoa(found))
	}
	return found, err
}

// wc: -l -w -c; all three without an option.
func wc(args []string) int {
	options, files := split(args, "")
	return each("wc", files, func(name string, content io.Reader) error {
		data, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		counts := map[rune]int{'l': bytes.Count(data, []byte("\n")), 'w': len(bytes.Fields(data)), 'c': len(data)}
		var words []string
		for _, kind := range "lwc" {
			if len(options) == 0 || options[kind] != "" {
				words = append(words, strconv.Itoa(counts[kind]))
			}
		}
		if name != "" {
			words = append(words, name)
		}
		fmt.Println(strings.Join(words, " "))
		return nil
	})
}

func count(options map[rune]string, args []string) (int, error) {
	value, given := options['n']
	if !given {
		return 10, nil
	}
	return strconv.Atoi(value)
}

// head: -n N.
func head(args []string) int {
	options, files := split(args, "n")
	limit, err := count(options, args)
	if err != nil {
		return fail("head", err)
	}
	return each("head", files, func(_ string, content io.Reader) error {
		left := limit
		return lines(content, func(line string) bool {
			if left > 0 {
				fmt.Println(line)
			}
			left--
			return left > 0
		})
	})
}

// tail: -n N.
func tail(args []string) int {
	options, files := split(args, "n")
	limit, err := count(options, args)
	if err != nil {
		return fail("tail", err)
	}
	return each("tail", files, func(_ string, content io.Reader) error {
		var all []string
		err := lines(content, func(line string) bool { all = append(all, line); return true })
		for _, line := range all[max(0, len(all)-limit):] {
			fmt.Println(line)
		}
		return err
	})
}

// sort: -r -u.
func sortLines(args []string) int {
	options, files := split(args, "")
	var all []string
	code := each("sort", files, func(_ string, content io.Reader) error {
		return lines(content, func(line string) bool { all = append(all, line); return true })
	})
	sort.Strings(all)
	if options['r'] != "" {
		sort.Sort(sort.Reverse(sort.StringSlice(all)))
	}
	for at, line := range all {
		if options['u'] == "" || at == 0 || line != all[at-1] {
			fmt.Println(line)
		}
	}
	return code
}
