//! Workers, bursts, MAC learning, mirrors and counters around a program.
