/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Parses a frame into a key. src/parse.rs does the same in Rust, and a test compares both.
 *
 * Fields that a frame is too short for stay zero. Fragments, even first ones, have no ports and no
 * inner headers, so that all fragments of a packet have the same key. */
#pragma once
#include "maps.h"

#define EXTENSIONS_MAX 6 /* most IPv6 extension headers that are skipped */
#define VLAN_NONE 0xffff

struct cursor {
	__u8 *at;
	__u8 *end;
};

/* Returns the next bytes, or NULL if the frame has fewer. */
#define PEEK(cursor, bytes) \
	((cursor)->at + (bytes) <= (cursor)->end ? (cursor)->at : (__u8 *)0)

INLINE __u16 two(const __u8 *at)
{
	return (__u16)at[0] << 8 | at[1];
}

INLINE void copy4(__u8 *to, const __u8 *from)
{
	__builtin_memcpy(to, from, 4);
}

/* Reads ports. Returns whether there is a complete UDP header; the cursor is then behind it. */
INLINE int parse_transport(struct cursor *cursor, struct headers *out, __u8 protocol)
{
	__u8 *at;

	switch (protocol) {
	case 6:
	case 17:
	case 132:
		at = PEEK(cursor, 4);
		if (!at)
			return 0;
		__builtin_memcpy(&out->tp_src, at, 2);
		__builtin_memcpy(&out->tp_dst, at + 2, 2);
		if (protocol != 17 || !PEEK(cursor, 8))
			return 0;
		cursor->at += 8;
		return 1;
	case 1:
	case 58:
		at = PEEK(cursor, 2);
		if (!at)
			return 0;
		out->tp_src = bpf_htons(at[0]);
		out->tp_dst = bpf_htons(at[1]);
		return 0;
	}
	return 0;
}

/* Reads an IPv4 header. Returns whether ports follow. */
INLINE int parse_ipv4(struct cursor *cursor, struct headers *out)
{
	__u8 *at = PEEK(cursor, 20);
	__u32 length, fragment;

	if (!at || at[0] >> 4 != 4)
		return 0;
	length = (at[0] & 15) * 4;
	if (length < 20)
		return 0;
	out->nw_tos = at[1] & 0xfc;
	out->nw_proto = at[9];
	copy4(out->nw_src, at + 12);
	copy4(out->nw_dst, at + 16);
	fragment = two(at + 6) & 0x3fff;
	if (fragment) {
		out->frag = fragment & 0x1fff ? 3 : 1;
		return 0;
	}
	cursor->at += length;
	return 1;
}

/* Reads an IPv6 header. Returns whether ports follow. */
INLINE int parse_ipv6(struct cursor *cursor, struct headers *out)
{
	__u8 *at = PEEK(cursor, 40);
	__u8 next;

	if (!at || at[0] >> 4 != 6)
		return 0;
	out->nw_tos = ((at[0] & 15) << 4 | at[1] >> 4) & 0xfc;
	next = at[6];
	__builtin_memcpy(out->nw_src, at + 8, 16);
	__builtin_memcpy(out->nw_dst, at + 24, 16);
	cursor->at += 40;
#pragma unroll
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		out->nw_proto = next;
		if (next == 44) {
			at = PEEK(cursor, 8);
			if (!at)
				return 0;
			out->nw_proto = at[0];
			out->frag = two(at + 2) & 0xfff8 ? 3 : 1;
			return 0;
		}
		if (next != 0 && next != 43 && next != 60 && next != 51)
			return 1;
		at = PEEK(cursor, 8);
		if (!at)
			return 0;
		cursor->at += next == 51 ? ((__u32)at[1] + 2) * 4 : ((__u32)at[1] + 1) * 8;
		next = at[0];
	}
	out->nw_proto = next;
	return next != 0 && next != 43 && next != 60 && next != 51 && next != 44;
}

INLINE void parse_arp(struct cursor *cursor, struct headers *out)
{
	__u8 *at = PEEK(cursor, 28);

	if (!at || two(at) != 1 || two(at + 2) != 0x0800 || at[4] != 6 || at[5] != 4)
		return;
	out->nw_proto = at[7];
	copy4(out->nw_src, at + 14);
	copy4(out->nw_dst, at + 24);
}

/* Reads a frame. Returns -1 if the Ethernet header is incomplete, 1 if the cursor is behind a UDP
 * header, else 0. `ip` gets the offset of the IP header in the frame, or 0. */
INLINE int parse_frame(struct cursor *cursor, struct headers *out, __u32 *ip)
{
	__u8 *at = PEEK(cursor, 14);
	__u32 distance = 14;
	__u16 type;
	int ports;

	out->dl_vlan = bpf_htons(VLAN_NONE);
	if (!at)
		return -1;
	__builtin_memcpy(out->dl_dst, at, 6);
	__builtin_memcpy(out->dl_src, at + 6, 6);
	type = two(at + 12);
	cursor->at += 14;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (type != 0x8100 && type != 0x88a8)
			break;
		at = PEEK(cursor, 4);
		if (!at)
			break;
		if (i == 0) {
			out->dl_vlan = bpf_htons(two(at) & 0xfff);
			out->dl_vlan_pcp = at[0] >> 5;
		}
		type = two(at + 2);
		cursor->at += 4;
		distance += 4;
	}
	out->dl_type = bpf_htons(type < 0x600 ? 0x5ff : type);
	if (type == 0x0800 || type == 0x86dd) {
		*ip = distance;
		ports = type == 0x0800 ? parse_ipv4(cursor, out) : parse_ipv6(cursor, out);
		return ports ? parse_transport(cursor, out, out->nw_proto) : 0;
	}
	if (type == 0x0806)
		parse_arp(cursor, out);
	return 0;
}

struct frame {
	__u32 ip; /* offset of the outer IP header; 0: none */
};

/* Reads a packet, without its flow control field, into a key that is zero. */
INLINE int parse_packet(const struct config *config, __u8 *data, __u8 *end, struct key *key,
			struct frame *frame)
{
	struct cursor cursor = {data, end};
	__u32 inner;
	__u8 *at;
	int udp = parse_frame(&cursor, &key->outer, &frame->ip);

	if (udp < 0)
		return -1;
	if (udp != 1 || bpf_ntohs(key->outer.tp_dst) != config->vxlan_port)
		return 0;
	at = PEEK(&cursor, 8);
	if (!at || !(at[0] & 8))
		return 0;
	key->tunnel = 1;
	__builtin_memcpy(key->vni, at + 4, 3);
	cursor.at += 8;
	parse_frame(&cursor, &key->inner, &inner);
	return 0;
}

/* Reads the flow control field. Returns whether there is one; a field of zeros counts as none. */
INLINE int parse_fcf(__u32 layout, const __u8 *data, const __u8 *end, const struct frame *frame,
		     const struct key *key, __u16 *vm, __u8 *priority)
{
	/* The mask tells the verifier the bound. */
	__u64 at = frame->ip & 31;
	__u32 tos;

	if (layout == LAYOUT_VLAN) {
		__u16 id = bpf_ntohs(key->outer.dl_vlan);

		if (id == 0 || id >= 4095)
			return 0;
		*vm = id;
		*priority = key->outer.dl_vlan_pcp >> 2;
		return 1;
	}
	if (layout == LAYOUT_NONE || at < 14 || at > 22 || data + at + 2 > end)
		return 0;
	if (key->outer.dl_type == bpf_htons(0x0800)) {
		if (data[at] >> 4 != 4)
			return 0;
		tos = data[at + 1];
	} else {
		if (data[at] >> 4 != 6)
			return 0;
		tos = (data[at] & 15) << 4 | data[at + 1] >> 4;
	}
	*priority = tos >> 7;
	*vm = layout == LAYOUT_DSCP6 ? (tos >> 2) & 31 : tos & 127;
	return *vm || *priority;
}

/* Mixes a word into a hash. */
INLINE __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Returns the hash that identifies a packet's flow: over the tunnel, and the headers of the inner
 * frame, or else of the outer one, without VLAN priority, ToS and fragment flags. */
INLINE __u64 flow_of(const struct key *key, __u64 seed)
{
	__u64 words[sizeof(struct headers) / 8];
	struct headers *headers = (struct headers *)words;
	__u32 tunnel;

	*headers = key->tunnel ? key->inner : key->outer;
	headers->dl_vlan_pcp = 0;
	headers->nw_tos = 0;
	headers->frag = 0;
	__builtin_memcpy(&tunnel, &key->tunnel, 4);
	seed = mix(seed, tunnel);
#pragma unroll
	for (int i = 0; i < sizeof(struct headers) / 8; i++)
		seed = mix(seed, words[i]);
	return seed;
}
