/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/*
 * Addresses. Both families are 16 bytes everywhere; IPv4 is v4-mapped (::ffff:a.b.c.d). So one map and
 * one function serve both families. Functions work on 32-bit words, since the compiler may not use
 * 64-bit loads on unaligned packet data.
 */

static __always_inline void addr_copy(void *to, const void *from)
{
	__builtin_memcpy(__builtin_assume_aligned(to, 4), __builtin_assume_aligned(from, 4), 16);
}

static __always_inline void addr_from_v4(__u8 *to, __be32 v4)
{
	__u32 *w = (__u32 *)to;

	w[0] = 0;
	w[1] = 0;
	w[2] = bpf_htonl(0xffff);
	w[3] = v4;
}

static __always_inline __be32 addr_v4(const __u8 *a)
{
	return ((const __u32 *)a)[3];
}

static __always_inline bool addr_is_v4(const __u8 *a)
{
	const __u32 *w = (const __u32 *)a;

	return !w[0] && !w[1] && w[2] == bpf_htonl(0xffff);
}

static __always_inline bool addr_equal(const __u8 *a, const __u8 *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

static __always_inline bool mac_equal(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

/* The "any" address of a's family. */
static __always_inline void addr_any_of(__u8 *to, const __u8 *a)
{
	__u32 *w = (__u32 *)to;

	w[0] = 0;
	w[1] = 0;
	w[2] = addr_is_v4(a) ? bpf_htonl(0xffff) : 0;
	w[3] = 0;
}

static __always_inline bool addr_is_any(const __u8 *a)
{
	const __u32 *w = (const __u32 *)a;

	return !w[0] && !w[1] && !w[3] && (!w[2] || w[2] == bpf_htonl(0xffff));
}

/* 224.0.0.0/4, ff00::/8 and the limited broadcast address. */
static __always_inline bool addr_is_multicast(const __u8 *a)
{
	if (addr_is_v4(a))
		return a[12] >= 224 && (a[12] < 240 || addr_v4(a) == 0xffffffff);
	return a[0] == 0xff;
}

/* 127.0.0.0/8 and ::1 */
static __always_inline bool addr_is_loopback(const __u8 *a)
{
	const __u32 *w = (const __u32 *)a;

	if (addr_is_v4(a))
		return a[12] == 127;
	return !w[0] && !w[1] && !w[2] && w[3] == bpf_htonl(1);
}

/* fe80::/10 */
static __always_inline bool addr_is_link_local6(const __u8 *a)
{
	return a[0] == 0xfe && (a[1] & 0xc0) == 0x80;
}

/* Do a and b share their first len bits (0-128)? */
static __always_inline bool addr_same_prefix(const __u8 *a, const __u8 *b, __u32 len)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	__u32 i;

#pragma unroll
	for (i = 0; i < 4; i++) {
		__u32 bits = len >= 32 * (i + 1) ? 32 : len > 32 * i ? len - 32 * i : 0;
		__u32 diff = bpf_ntohl(x[i] ^ y[i]);

		if (bits == 32 ? diff : bits && (diff >> (32 - bits)))
			return false;
	}
	return true;
}
