//! Files of rules that flows are made from.

use crate::Corpus;

const FILTERS: &str = "@10.0.0.0/8\t192.168.1.0/24\t0 : 65535\t80 : 80\t0x06/0xFF\t0x1000/0x1000\n\
    @0.0.0.0/0 1.2.3.4/32 1024 : 65535 53:53 0x11/0xFF\n\
    @0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x00/0x00\t0x0000/0x0000\n\
    @fd00::/8 ::/0 0 : 65535 0 : 65535 0x3a/0xFF\n";

const DUMP: &str = "NXST_FLOW reply (xid=0x4):\n \
    cookie=0x0, duration=2.5s, table=0, n_packets=1, n_bytes=60, priority=9,tcp,in_port=\"eth1\",\
    nw_src=10.0.0.0/8,tp_dst=0x50/0xfff0 actions=output:2\n \
    cookie=0x0, duration=2.5s, table=3, n_packets=1, n_bytes=60, metadata=7 actions=drop\n";

const FLOWS: &str = "# rules\nadd priority=3,icmp,icmp_type=3,icmp_code=4,actions=drop\n\
    udp6,ipv6_src=fd00::1/ffff::ff,udp_dst=7,dl_vlan=5,ip_dscp=10,actions=normal\n\
    dl_src=2:0:0:0:0:1,dl_dst=1:0:0:0:0:0/1:0:0:0:0:0,dl_vlan=0xffff actions=flood\n\
    dl_type=0x86dd,nw_proto=47 actions=drop\npriority=0 actions=NORMAL\n";

/// The ACL of the tuple-space explosion's paper.
const ACL: &str = "tcp,tp_dst=80,actions=1\ntcp,nw_src=10.0.0.1,actions=1\ntcp,tp_src=0x3039,\
    actions=1\npriority=0,actions=drop\n";

/// Writes files, with the byte in front that chooses the format.
pub fn write(corpus: &Corpus) -> std::io::Result<()> {
    corpus.add("filters", &[&[0], FILTERS.as_bytes()])?;
    corpus.add("dump", &[&[1], DUMP.as_bytes()])?;
    corpus.add("flows", &[&[2], FLOWS.as_bytes()])?;
    corpus.add("acl", &[&[4], ACL.as_bytes()])
}
