// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxOwn bounds the devices that a look by key asks for, each by a message. A node with more gets full looks.
	maxOwn = 256
	// maxGone bounds those among them that do not exist now. A device comes back from a pod with the number that it had.
	maxGone = 32
	// maxNew bounds the numbers that a look by key tries. Between two looks there are as many ADDs.
	maxNew = 256
)

// Memory is what one look leaves for the next.
type Memory struct {
	newest  int         // devices that came after this one were not looked at
	routes  bool        // the routes were read, not the names of uplinks
	own     []ownDevice // the devices of the node itself, in their order
	checked netip.Addr  // the address that was looked up last among those of other devices
}

// ownDevice is a device that is not a pod's.
type ownDevice struct {
	deviceRoutes
	addrScope // when its routes were read

	index  int
	gone   bool
	routed bool // packets of pods are routed from it
}

// TooLarge reports that the next look must be a full one: a look by key would take too many messages.
func (m *Memory) TooLarge() bool { return len(m.own) > maxOwn }

func (m *Memory) has(index int) bool {
	_, ok := slices.BinarySearchFunc(m.own, index, func(d ownDevice, index int) int { return d.index - index })
	return ok
}

func (m *Memory) add(d ownDevice) {
	at, ok := slices.BinarySearchFunc(m.own, d.index, func(d ownDevice, index int) int { return d.index - index })
	if ok {
		m.own[at] = d
		return
	}
	m.own = slices.Insert(m.own, at, d)
}

// keepGone adds those of own that m lacks, and leaves out the oldest if there are too many.
func (m *Memory) keepGone(own []ownDevice) {
	for _, d := range own {
		if !m.has(d.index) {
			m.add(ownDevice{index: d.index, gone: true})
		}
	}
	m.dropGone()
}

// dropGone forgets the devices with the lowest numbers among those that are gone, if they are too many.
func (m *Memory) dropGone() {
	n := 0
	for _, d := range m.own {
		if d.gone {
			n++
		}
	}
	m.own = slices.DeleteFunc(m.own, func(d ownDevice) bool {
		if d.gone && n > maxGone {
			n--
			return true
		}
		return false
	})
}

// memoryFormat is the first line of the file. Another one is that of another build: it is not read.
const memoryFormat = "sluice-look 1"

// String is the content of the file: a word and its values in each line.
func (m *Memory) String() string {
	var b strings.Builder
	b.WriteString(memoryFormat + "\nnewest " + strconv.Itoa(m.newest) + "\n")
	if m.routes {
		b.WriteString("routes\n")
	}
	if m.checked.IsValid() {
		b.WriteString("checked " + m.checked.String() + "\n")
	}
	for _, d := range m.own {
		b.WriteString("own " + strconv.Itoa(d.index))
		for _, flag := range []struct {
			on   bool
			word string
		}{{d.nets, " nets"}, {d.far, " far"}, {d.addrScope == singleAddress, " single"}, {d.addrScope == inSubnet, " subnet"}, {d.gone, " gone"}, {d.routed, " pods"}} {
			if flag.on {
				b.WriteString(flag.word)
			}
		}
		b.WriteByte('\n')
	}
	b.WriteString("end\n")
	return b.String()
}

var errMemory = errors.New("not what a look writes")

// ParseMemory undoes String. The error says that another build wrote s, or that it is cut.
func ParseMemory(s string) (*Memory, error) {
	lines := strings.Split(s, "\n")
	if len(lines) < 4 || lines[0] != memoryFormat || lines[len(lines)-2] != "end" || lines[len(lines)-1] != "" {
		return nil, errMemory
	}
	m := &Memory{newest: -1}
	for _, line := range lines[1 : len(lines)-2] {
		if err := m.parseLine(line); err != nil {
			return nil, err
		}
	}
	if m.newest < 0 {
		return nil, errMemory
	}
	return m, nil
}

func (m *Memory) parseLine(line string) (err error) {
	word, value, _ := strings.Cut(line, " ")
	switch word {
	case "newest":
		m.newest, err = strconv.Atoi(value)
		return err
	case "routes":
		m.routes = true
		return nil
	case "checked":
		m.checked, err = netip.ParseAddr(value)
		return err
	case "own":
		return m.parseOwn(value)
	}
	return errMemory
}

func (m *Memory) parseOwn(value string) error {
	number, flags, _ := strings.Cut(value, " ")
	index, err := strconv.Atoi(number)
	if err != nil || index <= 0 || len(m.own) > 0 && m.own[len(m.own)-1].index >= index {
		return errMemory
	}
	d := ownDevice{index: index}
	for flag := range strings.FieldsSeq(flags) {
		switch flag {
		case "nets":
			d.nets = true
		case "far":
			d.far = true
		case "single":
			d.addrScope = singleAddress
		case "subnet":
			d.addrScope = inSubnet
		case "gone":
			d.gone = true
		case "pods":
			d.routed = true
		default:
			return errMemory
		}
	}
	m.own = append(m.own, d)
	return nil
}
