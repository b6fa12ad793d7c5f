//! Policing: `QoS` rows of types `egress-policer` and `trtcm-policer`, and `ingress_policing_*` of
//! interfaces.
//!
//! Egress policers have rates in bytes/s and bursts in bytes; ingress policers have kbit/s and kbit
//! (and thousands of packets), as in Open vSwitch. All count frames without their Ethernet header.

use super::problem::Problems;
use super::qos::{IngressError, OutOfRange, RowError, number, queue_number};
use ovsdb::vswitch::{self, Strings};
use qos::policer::{IngressSpec, PolicerSpec, Profile, Rates};

const ONE_KEYS: [&str; 2] = ["cir", "cbs"];
const TWO_KEYS: [&str; 4] = ["cir", "cbs", "eir", "ebs"];

fn profile(options: &Strings, rate: &str, burst: &str) -> Result<Profile, RowError> {
    Ok(Profile {
        rate: number(options, rate)?.unwrap_or(0),
        burst: number(options, burst)?.unwrap_or(0),
    })
}

fn rates(options: &Strings) -> Result<Rates, RowError> {
    Ok(Rates {
        committed: profile(options, "cir", "cbs")?,
        excess: profile(options, "eir", "ebs")?,
    })
}

fn strange(options: &Strings, known: &[&str], who: &str, say: &mut dyn FnMut(String)) {
    for key in options.keys().filter(|key| !known.contains(&key.as_str())) {
        say(format!("{who}unknown key other_config:{key}, ignoring it"));
    }
}

/// Reads a row of type `egress-policer` or `trtcm-policer`. Unknown keys are ignored and reported
/// by `say`.
pub fn read(qos: &vswitch::QoS, say: &mut dyn FnMut(String)) -> Result<PolicerSpec, RowError> {
    let spec = if qos.kind == "egress-policer" {
        strange(&qos.other_config, &ONE_KEYS, "", say);
        if !qos.queues.is_empty() {
            say("an egress-policer has no queues, ignoring them".into());
        }
        PolicerSpec::One(profile(&qos.other_config, "cir", "cbs")?)
    } else {
        strange(&qos.other_config, &TWO_KEYS, "", say);
        two_rates(qos, say)?
    };
    spec.check()?;
    if let PolicerSpec::Queues { port, queues } = &spec {
        useless(port, queues, say);
    }
    Ok(spec)
}

/// Reports rates that let nothing pass in the long run. They are no error, because Open vSwitch
/// accepts them (DPDK's marker requires bursts where there are rates, but accepts missing rates).
fn useless(port: &Rates, queues: &[(u32, Rates)], say: &mut dyn FnMut(String)) {
    let none = |rates: &Rates| rates.committed.rate == 0 && rates.excess.rate == 0;
    let what = "neither cir nor eir is there: nothing passes once its bursts are used up";
    if none(port) {
        return say(what.into());
    }
    for (number, _) in queues.iter().filter(|(_, rates)| none(rates)) {
        say(format!("queue {number}: {what}"));
    }
}

fn two_rates(qos: &vswitch::QoS, say: &mut dyn FnMut(String)) -> Result<PolicerSpec, RowError> {
    let port = rates(&qos.other_config)?;
    let mut queues = Vec::with_capacity(qos.queues.len() + 1);
    // The default queue always exists; without a row it has the port's rates.
    if !qos.queues.contains_key(&0) {
        queues.push((0, port));
    }
    for (number, row) in &qos.queues {
        let number = queue_number(*number)?;
        strange(
            &row.other_config,
            &TWO_KEYS,
            &format!("queue {number}: "),
            say,
        );
        let own = match (number, row.other_config.is_empty()) {
            (0, true) => port,
            _ => rates(&row.other_config).map_err(|error| error.of_queue(number))?,
        };
        queues.push((number, own));
    }
    Ok(PolicerSpec::Queues { port, queues })
}

/// Reads `ingress_policing_*`. On an error the port keeps its current policing.
pub fn ingress(
    row: &vswitch::Interface,
    problems: &mut Problems,
) -> Result<IngressSpec, IngressError> {
    let most = i64::from(u32::MAX);
    let kpkts = i64::from(IngressSpec::MAX_KPKTS);
    let mut value = |column: &'static str, value: i64, most: i64| {
        if (0..=most).contains(&value) {
            return Ok(value as u32);
        }
        let error = OutOfRange { value, most };
        let said = format!("{error}; what was configured before stays so");
        problems.add("Interface", &row.name, column, said);
        Err(IngressError::Column { column, error })
    };
    Ok(IngressSpec {
        kbits_rate: value("ingress_policing_rate", row.ingress_policing_rate, most)?,
        kbits_burst: value("ingress_policing_burst", row.ingress_policing_burst, most)?,
        kpkts_rate: value(
            "ingress_policing_kpkts_rate",
            row.ingress_policing_kpkts_rate,
            kpkts,
        )?,
        kpkts_burst: value(
            "ingress_policing_kpkts_burst",
            row.ingress_policing_kpkts_burst,
            kpkts,
        )?,
    })
}
