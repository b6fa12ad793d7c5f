"""Every command of ovs-ofctl in every version of OpenFlow, on Open vSwitch and on the daemon under
test: both answer the same, but for what is explained in test_every_command_differences.txt beside
this file."""

import os
import re

from differences import hold
from harness import OPEN_VSWITCH, Skip, switchd_command, test

EXPLAINED = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "test_every_command_differences.txt"
)
VERSIONS = ("OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15")

# Each line a command; "<" ends it where standard input follows. BR is the bridge. The bridge has
# the ports 1 and 2.
COMMANDS = r"""
show BR
dump-desc BR
dump-tables BR
dump-table-features BR
dump-table-desc BR
dump-ports BR
dump-ports BR 1
dump-ports BR LOCAL
dump-ports BR 77
dump-ports-desc BR
dump-ports-desc BR 1
dump-ports-desc BR 77
probe BR
ping BR 2
get-frags BR
set-frags BR nx-match
get-frags BR
set-frags BR normal
set-frags BR drop
set-frags BR reassemble
set-frags BR normal
mod-port BR 1 no-flood
mod-port BR 1 no-forward
mod-port BR 1 no-receive
mod-port BR 1 no-packet-in
mod-port BR 1 down
dump-ports-desc BR
mod-port BR 1 up
mod-port BR 1 flood
mod-port BR 1 forward
mod-port BR 1 receive
mod-port BR 1 packet-in
mod-port BR 1 no-stp
mod-port BR 77 up
mod-port BR LOCAL no-flood
mod-port BR LOCAL flood
queue-stats BR
queue-stats BR 1
queue-stats BR ALL 5
queue-stats BR 1 5
queue-stats BR 77
queue-get-config BR
queue-get-config BR 1
queue-get-config BR 77
add-flow BR cookie=1,priority=5,in_port=1,actions=2
add-flow BR cookie=2,table=3,tcp,tp_dst=80,idle_timeout=60,hard_timeout=600,send_flow_rem,actions=resubmit(,4)
add-flow BR cookie=3,dl_vlan=7,dl_vlan_pcp=3,actions=strip_vlan,IN_PORT
add-flow BR cookie=4,arp,arp_spa=10.0.0.0/24,actions=drop
add-flow BR check_overlap,priority=5,actions=drop
add-flow BR cookie=5,reset_counts,priority=6,actions=drop
add-flow BR cookie=5,no_packet_counts,no_byte_counts,priority=7,actions=drop
add-flow BR importance=7,priority=8,actions=drop
add-flow BR in_port=1,actions=output:99
add-flow BR in_port=1,actions=output:65400
add-flow BR actions=group:44
add-flow BR actions=meter:44
add-flow BR actions=goto_table:2
add-flow BR table=5,actions=goto_table:5
add-flow BR actions=write_metadata:1,goto_table:3
add-flow BR table=200,actions=controller
add-flow BR table=254,actions=drop
add-flow BR actions=write_actions(drop)
add-flow BR actions=clear_actions
add-flow BR tcp,actions=mod_nw_dst:1.2.3.4,mod_tp_dst:5
add-flow BR actions=learn(table=4,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])
add-flow BR actions=sample(probability=5,collector_set_id=1,obs_domain_id=2,obs_point_id=3)
add-flow BR actions=note:11.22.33
add-flow BR actions=enqueue:1:2
add-flow BR actions=set_queue:3,pop_queue
add-flow BR actions=push_vlan:0x8100,set_field:4101->vlan_vid
add-flow BR actions=push_mpls:0x8847
add-flow BR ip,actions=ct(commit)
add-flow BR ct_state=+trk,actions=drop
add-flow BR ct_state=+trk+new,ct_zone=4,ct_mark=1/1,ct_label=5,actions=drop
add-flow BR conj_id=3,actions=1
add-flow BR in_port=2,actions=conjunction(3,1/2)
add-flow BR tun_metadata0=1,actions=drop
add-flow BR actions=encap(nsh)
add-flow BR actions=decap
add-flow BR tcp,tcp_flags=+syn-ack,actions=drop
add-flow BR icmp6,icmpv6_type=135,icmpv6_code=0,nd_target=fe80::1,nd_sll=00:11:22:33:44:55,actions=drop
add-flow BR mpls,mpls_label=5,mpls_tc=3,mpls_bos=1,actions=drop
add-flow BR reg0=1,reg15=2/3,xreg2=7,xxreg3=9,metadata=1/7,pkt_mark=3,tun_id=8,tun_src=1.2.3.4,tun_ipv6_dst=::1,actions=drop
add-flow BR in_port=LOCAL,vlan_tci=0x1000/0x1000,actions=1
mod-flows BR cookie=1/-1,actions=IN_PORT
mod-flows BR cookie=0x77/0xff,actions=drop
--strict mod-flows BR priority=5,in_port=1,actions=NORMAL
dump-flows BR
--no-stats dump-flows BR table=3
dump-flows BR cookie=1/-1
dump-flows BR out_port=1
dump-flows BR out_group=44
--names dump-flows BR
--sort=priority --rsort=cookie dump-flows BR
dump-aggregate BR
dump-aggregate BR table=3
replace-flows BR - < priority=1,actions=NORMAL|priority=2,in_port=1,actions=drop
diff-flows BR - < priority=1,actions=NORMAL
del-flows BR priority=1
del-flows BR cookie=1/-1
--strict del-flows BR priority=2,in_port=1
del-flows BR out_port=1
del-flows BR
dump-flows BR
--bundle add-flows BR - < priority=1,actions=NORMAL|priority=2,in_port=1,actions=drop
--bundle add-flows BR - < priority=3,actions=NORMAL|priority=4,actions=group:77
bundle BR - < flow add priority=9,actions=drop|flow delete in_port=1|packet-out in_port=1,packet=ffffffffffff00000000000188b5,actions=drop
--no-stats dump-flows BR
add-group BR group_id=1,type=all,bucket=output:1,bucket=output:2
add-group BR group_id=2,type=select,selection_method=hash,fields(ip_src,tcp_dst),bucket=bucket_id:3,weight:5,output:1,bucket=bucket_id:4,weight:6,output:2
add-group BR group_id=3,type=indirect,bucket=output:1
add-group BR group_id=4,type=ff,bucket=watch_port:1,output:1,bucket=watch_port:2,output:2
add-group BR group_id=4,type=ff,bucket=watch_port:1,output:1
mod-group BR group_id=3,type=indirect,bucket=output:2
mod-group BR group_id=33,type=indirect,bucket=output:2
--may-create mod-group BR group_id=34,type=indirect,bucket=output:2
insert-buckets BR group_id=1,command_bucket_id=last,bucket=bucket_id:9,output:1
remove-buckets BR group_id=1,command_bucket_id=9
remove-buckets BR group_id=1,command_bucket_id=10
dump-groups BR
dump-groups BR 2
dump-groups BR 99
dump-group-stats BR
dump-group-stats BR 1
dump-group-features BR
del-groups BR group_id=1
del-groups BR group_id=99
del-groups BR
dump-groups BR
add-meter BR meter=1,kbps,burst,stats,band=type=drop,rate=1000,burst_size=100
add-meter BR meter=2,pktps,band=type=dscp_remark,prec_level=1,rate=1000
add-meter BR meter=1,kbps,band=type=drop,rate=1
mod-meter BR meter=1,pktps,band=type=drop,rate=5
mod-meter BR meter=9,pktps,band=type=drop,rate=5
dump-meters BR
dump-meter BR meter=1
meter-stats BR
meter-stats BR meter=1
meter-features BR
del-meter BR meter=1
del-meter BR meter=9
del-meters BR
dump-meters BR
mod-table BR 1 controller
mod-table BR 1 continue
mod-table BR 1 drop
mod-table BR 1 default
mod-table BR 1 evict
mod-table BR 1 noevict
mod-table BR 1 vacancy:20,80
mod-table BR 1 novacancy
mod-table BR ALL drop
packet-out BR in_port=1,packet=ffffffffffff00000000000188b5,actions=2
packet-out BR in_port=CONTROLLER,packet=ffffffffffff00000000000188b5,actions=TABLE
packet-out BR in_port=77,packet=ffffffffffff00000000000188b5,actions=2
packet-out BR in_port=1,packet=ffffffffffff00000000000188b5,actions=output:65300
packet-out BR in_port=1,metadata=5,packet=ffffffffffff00000000000188b5,actions=drop
packet-out BR in_port=1,packet=ff,actions=drop
add-tlv-map BR {class=0xffff,type=0,len=4}->tun_metadata0
add-tlv-map BR {class=0xffff,type=1,len=8}->tun_metadata1,{class=0xffff,type=2,len=4}->tun_metadata2
add-tlv-map BR {class=0xffff,type=0,len=4}->tun_metadata5
add-tlv-map BR {class=0xffff,type=9,len=4}->tun_metadata0
add-tlv-map BR {class=0xffff,type=9,len=5}->tun_metadata9
add-tlv-map BR {class=0xffff,type=9,len=0}->tun_metadata9
add-tlv-map BR {class=0xffff,type=9,len=128}->tun_metadata9
dump-tlv-map BR
del-tlv-map BR {class=0xffff,type=1,len=8}->tun_metadata1
del-tlv-map BR {class=0xffff,type=77,len=8}->tun_metadata7
dump-tlv-map BR
del-tlv-map BR
dump-tlv-map BR
ct-flush-zone BR 5
ct-flush BR
ct-flush BR zone=5
dump-ipfix-bridge BR
dump-ipfix-flow BR
benchmark BR 100 10
"""  # noqa: E501


def scenario(lab, name, command=None):
    """The answers of one daemon: {(version, number, command): text}."""
    switch = lab.switch(name, command=command)
    switch.bridge(
        "br0",
        "other_config:hwaddr=02:aa:00:00:00:01",
        "other_config:datapath-id=00000000000000b0",
        "protocols=" + ",".join(VERSIONS),
        "fail_mode=secure",
    )
    for number in (1, 2):
        switch.port(
            f"p{number}",
            "type=internal",
            f"ofport_request={number}",
            f'mac="02:bb:00:00:00:0{number}"',
        )
    texts = {}
    for version in VERSIONS:
        for number, line in enumerate(COMMANDS.strip().splitlines()):
            words, _, stdin = line.partition(" < ")
            arguments = [word if word != "BR" else "br0" for word in words.split(" ")]
            done = switch.ofctl(
                "-O",
                version,
                *arguments,
                ok=False,
                stdin=stdin.replace("|", "\n") + "\n" if stdin else None,
            )
            texts[version, number, line] = normal(
                line,
                done.stdout
                + done.stderr
                + (f"ended with {done.returncode}\n" if done.returncode else ""),
                switch,
            )
        for kind in ("flows", "groups", "meters"):
            if kind != "meters" or version >= "OpenFlow13":
                switch.ofctl("-O", version, f"del-{kind}", "br0", ok=False)
    switch.stop()
    return texts


def normal(line, text, switch):
    """The text without what differs between two runs of one daemon, in an order that does not."""
    text = text.replace(switch.directory, "RUNDIR")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z\|\d+\|", "", text)
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    text = re.sub(r"(duration|idle_age)=[\d.]+s?", r"\1=T", text)
    # Told only where it differs from the duration, by the second in which a rule was changed.
    text = re.sub(r"hard_age=\d+, ", "", text)
    text = re.sub(r"duration:[\d.]+s", "duration:T", text)
    text = re.sub(r"(rx|tx) (pkts|bytes)=\d+", r"\1 \2=N", text)
    # What the kernel sends by itself at some time, and drops, is in these, too.
    text = re.sub(r"(tx pkts=N, bytes=\d+, drop)=\d+", r"\1=N", text)
    text = re.sub(r"bytes=\d+", "bytes=N", text)
    text = re.sub(
        r"time [\d.]+ms|[\d.]+ ms|\d+ bytes from .*: xid=X|finished in.*|[\d.]+ packets/s.*",
        "TIMING",
        text,
    )
    if (
        line.startswith(("dump-", "show", "queue-get-config", "--", "diff", "meter-stats"))
        and "features" not in line
    ):
        text = "\n".join(sorted(text.splitlines()))
    return re.sub(r"[ \t]+$", "", text, flags=re.M).strip() + "\n"


@test(timeout=240)
def every_command_of_ovs_ofctl_in_every_version(lab):
    """Some 180 commands, six versions, both daemons, line by line."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = scenario(lab, "r", switchd_command("ovs")), scenario(lab, "t")
    with open(os.path.join(lab.directory, "answers.txt"), "w", encoding="utf-8") as file:
        for (version, number, line), reference in wanted.items():
            answer = got[version, number, line]
            file.write(
                f"#### -O {version} {line}\n{reference}"
                + ("" if answer == reference else f"#### but\n{answer}")
            )
    hold(
        lab,
        EXPLAINED,
        [(f"-O {key[0]} {key[2]}", reference, got[key]) for key, reference in wanted.items()],
    )
