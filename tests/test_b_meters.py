"""Meters: what the tools say of them, as Open vSwitch says it; and what they do to packets, on a stopped clock."""
import os
import re
import time

from harness import OPEN_VSWITCH, Failure, Skip, check, equal, ethernet, switchd_command, test, wait_for

VERSIONS = ("OpenFlow13", "OpenFlow14", "OpenFlow15")


def mod(switch, command, meter, *, version="OpenFlow13", bridge="br0"):
    """An ovs-ofctl meter command; what it printed and how it ended."""
    done = switch.tool("ovs-ofctl", "-O", version, command, bridge, *([meter] if meter else []), ok=False)
    return clean(done.stdout + done.stderr) + f"({done.returncode})"


def clean(text):
    text = re.sub(r"xid=0x[0-9a-f]+", "xid=X", text)
    return re.sub(r"duration[:=][\d.]+s?", "duration=T", text)


def told(lab, name, command=None):
    """What the tools print along a story of meters that come, change and go: [(command, output)]."""
    switch = lab.switch(name, command=command)
    switch.bridge("br0", "fail_mode=secure", "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15")
    story = []

    def step(command, meter=None, version="OpenFlow13"):
        story.append((f"-O {version} {command} {meter or ''}", mod(switch, command, meter, version=version)))

    def look():
        for version in VERSIONS:
            for command in ("dump-meters", "meter-stats", "dump-flows"):
                step(command, version=version)

    for version in VERSIONS:
        step("meter-features", version=version)
    look()
    step("add-meter", "meter=1 kbps band=type=drop rate=1000")
    step("add-meter", "meter=2 pktps burst band=type=drop rate=100 burst_size=20", "OpenFlow14")
    step("add-meter", "meter=3 kbps burst stats bands=type=drop rate=1000 burst_size=5 type=drop rate=2000 burst_size=6", "OpenFlow15")
    step("add-meter", "meter=4 kbps burst band=type=drop rate=7")
    step("add-meter", "meter=1 kbps band=type=drop rate=1")
    step("add-meter", "meter=5 kbps pktps band=type=drop rate=1")
    step("add-meter", "meter=6 kbps band=type=drop rate=0")
    step("add-meter", "meter=7 band=type=drop rate=9")
    step("add-meter", "meter=4294901760 kbps band=type=drop rate=3")
    step("add-meter", "meter=4294901761 kbps band=type=drop rate=3")
    step("add-meter", "meter=0 kbps band=type=drop rate=3")
    step("add-meter", "meter=controller pktps stats band=type=drop rate=10")
    step("add-meter", "meter=slowpath pktps stats band=type=drop rate=10")
    step("add-meter", "meter=all pktps stats band=type=drop rate=10")
    step("add-meter", "meter=8 kbps")
    step("add-meter", "meter=9 kbps bands=" + " ".join(f"type=drop rate={rate}" for rate in range(1, 9)))
    step("add-meter", "meter=10 kbps bands=" + " ".join(f"type=drop rate={rate}" for rate in range(1, 10)))
    look()
    step("mod-meter", "meter=1 pktps band=type=drop rate=5")
    step("mod-meter", "meter=77 pktps band=type=drop rate=5")
    step("mod-meter", "meter=2 kbps pktps band=type=drop rate=5")
    for version in VERSIONS:
        step("add-flow", f"in_port={version[-1]},actions=meter:1,output:2", version)
    step("add-flow", "in_port=7,actions=meter:55,output:2")
    step("add-flow", "in_port=7,actions=meter:55,output:2", "OpenFlow15")
    step("add-flow", "in_port=8,actions=meter:2,output:2", "OpenFlow15")
    step("add-flow", "in_port=9,actions=meter:2,meter:3,output:2", "OpenFlow15")
    step("add-flow", "in_port=10,actions=output:3,meter:3,output:2", "OpenFlow15")
    step("add-flow", "in_port=11,actions=meter:2,meter:3,output:2", "OpenFlow13")
    step("add-flow", "in_port=12,actions=controller(meter_id=3)")
    step("add-flow", "in_port=13,actions=controller(meter_id=99)")
    step("add-flow", "in_port=14,actions=write_actions(meter:1)", "OpenFlow15")
    step("add-flow", "in_port=15,actions=meter:0,output:1", "OpenFlow15")
    step("add-flow", "in_port=15,actions=meter:4294967294,output:1", "OpenFlow13")
    step("add-flow", "in_port=16,actions=meter:1,output:1", "OpenFlow10")
    step("add-flow", "in_port=17,actions=meter:1", "OpenFlow13")
    step("add-flow", "in_port=18,actions=meter:1,clear_actions,write_actions(output:1),goto_table:1", "OpenFlow13")
    step("add-flow", "in_port=19,actions=meter:1,clear_actions,write_actions(output:1),goto_table:1", "OpenFlow15")
    look()
    for version in ("OpenFlow10", "OpenFlow11", "OpenFlow12"):
        step("dump-flows", version=version)
    for meter in ("meter=1", "meter=2", "meter=99", "meter=controller", "meter=all", "meter=0"):
        step("dump-meters", meter)
        step("meter-stats", meter)
    step("del-meters", "meter=2")
    step("del-meters", "meter=99")
    step("del-meters", "meter=0")
    step("del-meters", "meter=controller")
    look()
    step("del-meters")
    look()
    step("dump-meters", version="OpenFlow12")
    step("add-meter", "meter=1 kbps band=type=drop rate=1000", version="OpenFlow11")
    switch.stop()
    return story


@test(timeout=120)
def told_as_open_vswitch(lab):
    """add-, mod-, del-, dump-meters, meter-stats and meter-features, and rules with meters, in 1.3, 1.4 and 1.5."""
    if not os.path.exists(OPEN_VSWITCH):
        raise Skip("Open vSwitch is not installed")
    wanted, got = told(lab, "r", switchd_command("ovs")), told(lab, "t")
    if os.environ.get("SHOW"):
        open(os.environ["SHOW"], "w").write("\n".join(f"$ {command}\n{text}" for command, text in wanted))
    wrong = [f"{command}\n  Open vSwitch: {reference}\n  this daemon:  {text}"
             for (command, reference), (_, text) in zip(wanted, got) if explained(command, reference) != text]
    if wrong:
        raise Failure("\n".join(wrong))


def explained(command, reference):
    return reference
