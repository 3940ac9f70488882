// SPDX-License-Identifier: Apache-2.0

// Package packages tests what build/release makes, from the outside: that two builds are equal, what is in the image and the SBOM,
// and what dpkg and rpm do with the packages on a node with running pods. "make package-check" runs it. No state of the machine's
// own dpkg or rpm is touched.
package packages
