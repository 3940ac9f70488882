# SPDX-License-Identifier: Apache-2.0
CLANG ?= clang-14
export BPF2GO_CC ?= $(CLANG)
export BPF2GO_CFLAGS ?= -O2 -g -Wall -Wextra -Wshadow -Wpadded -Werror -mcpu=v3 -idirafter /usr/include/$(shell uname -m)-linux-gnu

generate: ## compile the BPF programs and regenerate their Go bindings
	go generate ./pkg/bpfobj
