// SPDX-License-Identifier: Apache-2.0

// Command workload is what runs in the containers of the tests: it serves its name, or asks another one's. It is alone in its
// root file system.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const usage = "usage: workload serve NAME | workload ask URL | workload show DEVICE | workload pause"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 2 && args[0] == "ask":
		return ask(args[1])
	case len(args) == 2 && args[0] == "show":
		return show(args[1])
	case len(args) == 1 && args[0] == "pause":
		for { // waiting for nothing at all is a deadlock to the runtime, which ends the process
			time.Sleep(time.Hour)
		}
	}
	return errors.New(usage)
}

// serve answers on port 80, by HTTP and to datagrams, in both families.
func serve(name string) error {
	udp, err := net.ListenPacket("udp", ":80")
	if err != nil {
		return err
	}
	go func() {
		for buf := make([]byte, 2048); ; {
			if _, peer, err := udp.ReadFrom(buf); err == nil {
				_, _ = udp.WriteTo([]byte(name), peer)
			}
		}
	}()
	return http.ListenAndServe(":80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
}

// ask prints what a server says.
func ask(url string) error {
	c := http.Client{Timeout: 10 * time.Second}
	r, err := c.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, r.Status)
	}
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}

// show prints a device's hardware address and its addresses.
func show(device string) error {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	addrs, err := i.Addrs()
	fmt.Println(i.HardwareAddr, addrs)
	return err
}
