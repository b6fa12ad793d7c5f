//! A session as `ovs-appctl bfd/show` shows it, in Open vSwitch 3.1's format.

use crate::session::Session;
use std::fmt::Write;

/// Names of flags, from the lowest bit.
const FLAGS: [&str; 6] = ["multipoint", "demand", "auth", "ctl", "final", "poll"];

fn flags(bits: u8) -> String {
    let set = (FLAGS.iter().enumerate())
        .filter(|(bit, _)| bits >> bit & 1 != 0)
        .map(|(_, name)| *name);
    let names: Vec<&str> = set.collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(" "),
    }
}

/// Returns the lines about a session.
pub fn details(session: &Session, now: u64) -> String {
    let (detect, next, last) = session.times();
    let ahead = |time: u64| time.wrapping_sub(now) as i64;
    let (state, diagnostic) = session.state();
    let remote = session.remote();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // A string takes all that is written to it.
        let _ = writeln!(text, "  {name}: {value}");
    };
    line("Forwarding", session.is_forwarding().to_string());
    line(
        "Detect Multiplier",
        session.settings().multiplier.to_string(),
    );
    line(
        "Concatenated Path Down",
        session.settings().cpath_down.to_string(),
    );
    line(
        "TX Interval",
        format!("Approx {}ms", session.tx_interval_ms()),
    );
    line(
        "RX Interval",
        format!("Approx {}ms", session.rx_interval_ms()),
    );
    line("Detect Time", format!("now {:+}ms", ahead(detect)));
    line("Next TX Time", format!("now {:+}ms", ahead(next)));
    line("Last TX Time", format!("now {:+}ms", ahead(last)));
    text.push('\n');
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  Local {name}: {value}");
    };
    line("Flags", flags(session.flags()));
    line("Session State", state.name().to_owned());
    line("Diagnostic", diagnostic.name().to_owned());
    line("Discriminator", format!("{:#x}", session.discriminator()));
    line(
        "Minimum TX Interval",
        format!("{}ms", session.offered_tx_ms()),
    );
    line("Minimum RX Interval", format!("{}ms", session.min_rx_ms()));
    text.push('\n');
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  Remote {name}: {value}");
    };
    line("Flags", flags(remote.flags));
    line("Session State", remote.state.name().to_owned());
    line("Diagnostic", remote.diagnostic.name().to_owned());
    line("Discriminator", format!("{:#x}", remote.discriminator));
    line("Minimum TX Interval", format!("{}ms", remote.min_tx_ms));
    line("Minimum RX Interval", format!("{}ms", remote.min_rx_ms));
    line("Detect Multiplier", remote.multiplier.to_string());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Settings;

    /// As Open vSwitch 3.1 shows a session that has just begun, where its clock began at 0.
    #[test]
    fn a_new_session_is_shown_as_by_open_vswitch() {
        let session = Session::new(Settings::default(), 0x2965_6704, 443, 0);
        let shown = details(&session, 1000);
        let wanted = "  Forwarding: false
  Detect Multiplier: 3
  Concatenated Path Down: false
  TX Interval: Approx 1000ms
  RX Interval: Approx 1000ms
  Detect Time: now -1000ms
  Next TX Time: now -557ms
  Last TX Time: now -1000ms

  Local Flags: none
  Local Session State: down
  Local Diagnostic: No Diagnostic
  Local Discriminator: 0x29656704
  Local Minimum TX Interval: 1000ms
  Local Minimum RX Interval: 1000ms

  Remote Flags: none
  Remote Session State: down
  Remote Diagnostic: No Diagnostic
  Remote Discriminator: 0x0
  Remote Minimum TX Interval: 0ms
  Remote Minimum RX Interval: 1ms
  Remote Detect Multiplier: 0
";
        assert_eq!(shown, wanted);
        assert_eq!(flags(0x28), "ctl poll");
    }
}
