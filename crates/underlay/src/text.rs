//! What `ovs/route/*` and `tnl/neigh/*` take and print, as Open vSwitch does.
