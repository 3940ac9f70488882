// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Annotations by which flannel's nodes know each other with its subnet manager "kube" (pkg/subnet/kube of flannel).
const (
	flannelPrefix   = "flannel.alpha.coreos.com/"
	flannelType     = flannelPrefix + "backend-type"
	flannelData     = flannelPrefix + "backend-data"
	flannelDataV6   = flannelPrefix + "backend-v6-data"
	flannelPublic   = flannelPrefix + "public-ip"
	flannelPublicV6 = flannelPrefix + "public-ipv6"
	flannelManaged  = flannelPrefix + "kube-subnet-manager"
	// An administrator sets these where the address that other nodes reach is not the node's own.
	flannelOverwrite   = flannelPrefix + "public-ip-overwrite"
	flannelOverwriteV6 = flannelPrefix + "public-ipv6-overwrite"
)

func flannelKeys() []string {
	return []string{flannelType, flannelData, flannelDataV6, flannelPublic, flannelPublicV6, flannelManaged}
}

// longestData bounds what is parsed of an annotation.
const longestData = 1024

// backendData is the value of backend-data and backend-v6-data. Names and order are flannel's.
type backendData struct {
	VNI     uint32
	VtepMAC string
}

// vtep is a node's end of the VXLAN of one family.
type vtep struct {
	mac    [6]byte
	remote netip.Addr
}

func (v vtep) hardwareAddr() net.HardwareAddr { return net.HardwareAddr(v.mac[:]) }

// dataKeys returns the annotations with a family's VTEP, and those with its address.
func dataKeys(v4 bool) (data, public, overwrite string) {
	if v4 {
		return flannelData, flannelPublic, flannelOverwrite
	}
	return flannelDataV6, flannelPublicV6, flannelOverwriteV6
}

// readVTEP takes a node's VTEP from its annotations. They are the node's word, so nothing in them is taken for granted.
func readVTEP(n Node, v4 bool, vni int) (vtep, error) {
	dataKey, publicKey, _ := dataKeys(v4)
	refuse := func(key, value, why string) (vtep, error) {
		if len(value) > 64 {
			value = value[:64] + "..."
		}
		return vtep{}, &NodeError{n.Name, fmt.Sprintf("annotation %s: %q: %s", key, value, why)}
	}
	switch kind := n.Annotations[flannelType]; kind {
	case "vxlan":
	case "":
		return vtep{}, &NodeError{n.Name, fmt.Sprintf("annotation %s: missing; the node's agent, or flannel, has not started in vxlan mode yet", flannelType)}
	default:
		return refuse(flannelType, kind, "not vxlan; the node needs the same mode")
	}
	data := n.Annotations[dataKey]
	if data == "" || data == "null" { // flannel writes null for a family that it does not have
		return vtep{}, &NodeError{n.Name, fmt.Sprintf("annotation %s: missing; the node has no VXLAN device of %s yet", dataKey, familyName(v4))}
	}
	var d backendData
	if len(data) > longestData || json.Unmarshal([]byte(data), &d) != nil {
		return refuse(dataKey, data, `not {"VNI":...,"VtepMAC":...}`)
	}
	if d.VNI != uint32(vni) {
		return refuse(dataKey, data, fmt.Sprintf("the VNI is not %d; all nodes need the same vxlan.vni", vni))
	}
	mac, err := net.ParseMAC(d.VtepMAC)
	if err != nil || !isUnicastMAC(mac) {
		return refuse(dataKey, data, "no MAC address of a device")
	}
	v := vtep{mac: [6]byte(mac), remote: firstOf(n.InternalIPs, v4)}
	if s, ok := n.Annotations[publicKey]; ok {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Is4() != v4 || a.Zone() != "" || !isUnicast(a) {
			return refuse(publicKey, s, "not an "+familyName(v4)+" address of a node")
		}
		v.remote = a
	}
	if !v.remote.IsValid() {
		return vtep{}, &NodeError{n.Name, fmt.Sprintf("annotation %s: missing, and the node has no InternalIP of %s that can be used", publicKey, familyName(v4))}
	}
	return v, nil
}

// direct says that a node takes packets to its pods at its own address: one of flannel or Sluice in mode host-gw.
func direct(n Node) bool {
	kind := n.Annotations[flannelType]
	return kind == ModeHostGW || kind == "" && n.Annotations[AnnotationMode] == ModeHostGW
}

func isUnicastMAC(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && [6]byte(mac) != [6]byte{}
}

func isUnicast(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.Is4In6() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// writeVTEP adds the annotations of this node's own VTEP.
func writeVTEP(into map[string]string, self Node, v4 bool, vni int, v vtep) error {
	data, err := json.Marshal(backendData{uint32(vni), v.hardwareAddr().String()})
	if err != nil {
		return err
	}
	writeFlannel(into, self, v4, ModeVXLAN, string(data), v.remote)
	return nil
}

// writeDirect adds the annotations by which nodes of flannel, and those in mode vxlan, reach the pods of a node in mode host-gw.
func writeDirect(into map[string]string, self Node) {
	for _, v4 := range []bool{true, false} {
		if a := firstOf(self.InternalIPs, v4); a.IsValid() && firstCIDR(self, v4).IsValid() {
			writeFlannel(into, self, v4, ModeHostGW, "null", a)
		} else {
			blankFamily(into, self, v4)
		}
	}
}

func writeFlannel(into map[string]string, self Node, v4 bool, kind, data string, public netip.Addr) {
	dataKey, publicKey, overwriteKey := dataKeys(v4)
	if a, err := netip.ParseAddr(self.Annotations[overwriteKey]); err == nil && a.Is4() == v4 {
		public = a
	}
	into[dataKey], into[publicKey] = data, public.String()
	into[flannelType], into[flannelManaged] = kind, "true"
}

// blankFamily takes back what an agent of Sluice has said of a family that the node has no pods of any more.
func blankFamily(into map[string]string, self Node, v4 bool) {
	if !speaksFlannel(self.Annotations[AnnotationMode]) {
		return
	}
	data, public, _ := dataKeys(v4)
	for _, key := range []string{data, public} {
		if _, ok := self.Annotations[key]; ok {
			into[key] = ""
		}
	}
}

// speaksFlannel says that flannel's annotations are of an agent of Sluice in this mode.
func speaksFlannel(mode string) bool { return mode == ModeVXLAN || mode == ModeHostGW }

// ownMAC is the MAC of a new device: that of the last one, which the other nodes know, or one that follows from the node's name.
// So it stays over a reboot.
func ownMAC(self Node, v4 bool) net.HardwareAddr {
	dataKey, _, _ := dataKeys(v4)
	var d backendData
	if data := self.Annotations[dataKey]; len(data) <= longestData && json.Unmarshal([]byte(data), &d) == nil {
		if mac, err := net.ParseMAC(d.VtepMAC); err == nil && isUnicastMAC(mac) {
			return mac
		}
	}
	sum := sha256.Sum256([]byte("sluice vxlan " + familyName(v4) + " " + self.Name))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}

// deviceV6 is the name of the IPv6 device: flannel-v6.1 for flannel.1.
func deviceV6(v4 string) string {
	if name, number, ok := strings.Cut(v4, "."); ok {
		return name + "-v6." + number
	}
	return v4 + "-v6"
}
