// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// shortestRotation leaves the agents time to learn the keys of each other, and to be away for a while.
const shortestRotation = 10 * time.Minute

// keyFile is where a node's private keys are, below the state directory.
const keyFile = "wireguard/keys.json"

// removeKeys removes the node's private keys.
func removeKeys(stateDir string) error {
	path := filepath.Join(stateDir, keyFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // a third party's file in it stays
	return nil
}
