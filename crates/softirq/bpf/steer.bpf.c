/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Steering at a kernel interface: the XDP program, the program at the other end of the cpumap, and
 * the programs that measure cores.
 *
 *   steer_receive    parses, looks up, finds or makes the choice, redirects
 *   steer_arrive     in the cpumap's thread: notes which packet of which lane has arrived
 *   on_switch, ...   on tracepoints: measure cores' time, and note when lanes have drained
 *
 * A packet carries its lane and number in the headroom in front of its first byte, which neither
 * the stack nor other metadata of the frame use. */
#include "layout.h"
#include "parse.h"
#include "choose.h"
#include "drain.h"
#include "receive.h"
#include "sample.h"

char LICENSE[] SEC("license") = "GPL";
