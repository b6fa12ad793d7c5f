/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Steering at a kernel interface: the XDP program, the program at the other end of the cpumap, and
 * the programs that measure cores.
 *
 *   steer_receive    parse, look up, find or make the choice, redirect
 *   steer_arrive     in the cpumap's thread: which packet of which lane has arrived
 *   steer_switch...  on tracepoints: where each core's time goes, and when a lane has drained
 *
 * A packet carries its lane and number in the headroom in front of its first byte, where neither
 * the stack nor the frame's other metadata look. */
#include "layout.h"
#include "parse.h"
#include "choose.h"
#include "drain.h"
#include "receive.h"
#include "sample.h"

char LICENSE[] SEC("license") = "GPL";
