// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// Node identifies the running system. Machine and Boot are hashes: entries of a pool are readable for many.
type Node struct {
	Name    string // that the node gives itself; the store may know it by another
	BootID  string // as the kernel has it
	Machine string
	Boot    string
}

// A virtual machine that was cloned with its machine-id has another one here.
const productPath = "/sys/class/dmi/id/product_uuid"

// ThisNode reads the identity of the running system. confPath is configuration_path: whereabouts' installer leaves the
// node's name there. dataDir has the node's files: with two of them a machine counts as two, because neither knows what
// the other has.
func ThisNode(confPath, dataDir string) Node {
	n := Node{Name: nodeName(confPath), BootID: nodeid.BootID()}
	n.Boot = HashBoot(n.BootID)
	n.Machine = n.Boot // without an id nothing is known of earlier boots
	if id := nodeid.MachineID(); id != "" {
		n.Machine = hash("machine " + id + file.ReadLine(productPath) + filepath.Clean(dataDir))
	}
	return n
}

// nodeName is what whereabouts takes: the variable, the file, the host name.
func nodeName(confPath string) string {
	if name := strings.TrimSpace(os.Getenv("NODENAME")); name != "" {
		return name
	}
	if confPath != "" {
		if info, err := os.Stat(confPath); err == nil && !info.IsDir() {
			confPath = filepath.Dir(confPath)
		}
		if name := file.ReadLine(filepath.Join(confPath, "nodename")); name != "" {
			return name
		}
	}
	if name := file.ReadLine("/etc/hostname"); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

func hash(s string) string { return longHash(s)[:8] }

// longHash is long enough that two attachments of a node never have the same.
func longHash(s string) string {
	sum := sha256.Sum256([]byte("sluice-ipam " + s))
	return hex.EncodeToString(sum[:16])
}

// HashBoot is the hash of a boot id as an entry has it.
func HashBoot(id string) string { return hash("boot " + id) }
