//! sluiced: the switch daemon that stands where ovs-vswitchd stands.
