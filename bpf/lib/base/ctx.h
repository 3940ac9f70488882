/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/*
 * The verdict by which a program hands a packet on.
 */

/*
 * No verdict: later tcx programs, clsact filters and the stack go on (TCX_NEXT; TC_ACT_UNSPEC of a
 * direct-action filter).
 */
#define SL_NEXT (-1)
