// SPDX-License-Identifier: Apache-2.0

// relay LISTEN... TARGET passes every connection to a LISTEN on to TARGET. It stands
// in for kube-proxy, which needs a packet filter that a machine may not have:
// by it pods find the API server under its service address.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	last := len(os.Args) - 1
	if last < 2 {
		fmt.Fprintln(os.Stderr, "usage: relay LISTEN... TARGET")
		os.Exit(2)
	}
	ended := make(chan error)
	for _, listen := range os.Args[1:last] {
		go func() { ended <- serve(listen, os.Args[last]) }()
	}
	fmt.Fprintln(os.Stderr, "relay:", <-ended)
	os.Exit(1)
}

// serve ends only with what is wrong with the listener.
func serve(listen, target string) error {
	listener, err := net.Listen("tcp", listen)
	for err == nil {
		var accepted net.Conn
		if accepted, err = listener.Accept(); err == nil {
			go pass(accepted.(*net.TCPConn), target)
		}
	}
	return err
}

// pass copies both ways until both sides have said all they have to say.
func pass(caller *net.TCPConn, target string) {
	defer caller.Close()
	called, err := net.Dial("tcp", target)
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		return
	}
	defer called.Close()
	done := make(chan struct{})
	go func() {
		copyHalf(called.(*net.TCPConn), caller)
		close(done)
	}()
	copyHalf(caller, called.(*net.TCPConn))
	<-done
}

func copyHalf(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		// A broken side cannot be told more; the other one must not wait for it.
		to.Close()
		return
	}
	to.CloseWrite()
}
