/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/*
 * What every other header needs: the kernel's types, the helpers of libbpf, and a few macros.
 * Includes no map and no load-time constant.
 */

#define __must_check __attribute__((warn_unused_result))
#define __maybe_unused __attribute__((unused))
/*
 * Marks what most packets do. The compiler keeps that code together. A program runs on caches that
 * others have used since: each cache line of code that is missing costs as much as a map lookup.
 */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* From the C library's headers, which BPF cannot use. */
#define AF_INET 2
#define AF_INET6 10
#define ENODEV 19
