// SPDX-License-Identifier: Apache-2.0

// Package vagrantfile tests the Vagrantfile. Only its test has code. It is apart because it needs Ruby and Vagrant.
package vagrantfile
