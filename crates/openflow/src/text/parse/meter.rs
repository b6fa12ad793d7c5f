//! Parses meters as `ovs-ofctl add-meter` takes them and `dump-meters` prints them.

use super::values::bounded;
use super::{Error, Result, pairs};
use crate::model::meter::{Band, BandKind, MeterCommand, MeterConfig, MeterFlags, MeterMod};

/// Parses a meter to add: `meter=1,pktps,burst,bands=type=drop,rate=1000,burst_size=100`.
pub fn meter(text: &str) -> Result<MeterMod> {
    let (mut number, mut flags) = (None, MeterFlags::empty());
    let mut bands: Vec<(Option<u32>, Band)> = Vec::new();
    for pair in pairs(text) {
        let (mut key, mut value) = (pair.key, pair.value);
        if matches!(key, "band" | "bands") {
            // The first band begins behind the word: `bands=type=drop`, or behind a space.
            let Some((first, rest)) = value.split_once(['=', ':']) else {
                if value.is_empty() {
                    continue;
                }
                return Err(Error::new(format!("invalid band {value}")));
            };
            (key, value) = (first, rest);
        }
        let limit = || bounded(value, 32, key).map(|number| number as u32);
        match (key, bands.last_mut()) {
            ("type", _) => bands.push((None, band_of(value)?)),
            ("rate", Some((rate, _))) => *rate = Some(limit()?),
            ("burst_size", Some((_, band))) => band.burst = limit()?,
            ("prec_level", Some((_, band))) => match &mut band.kind {
                BandKind::DscpRemark(steps) => *steps = bounded(value, 8, key)? as u8,
                BandKind::Drop => return Err(Error::new("prec_level is for dscp_remark")),
            },
            (_, Some(_)) => return Err(Error::new(format!("unknown keyword {key}"))),
            ("meter", None) => number = Some(number_of(value)?),
            ("kbps", None) => flags |= MeterFlags::KBPS,
            ("pktps", None) => flags |= MeterFlags::PKTPS,
            ("burst", None) => flags |= MeterFlags::BURST,
            ("stats", None) => flags |= MeterFlags::STATS,
            (_, None) => return Err(Error::new(format!("unknown keyword {key}"))),
        }
    }
    if flags.contains(MeterFlags::KBPS | MeterFlags::PKTPS) {
        return Err(Error::new("kbps and pktps exclude each other"));
    }
    if !flags.contains(MeterFlags::PKTPS) {
        flags |= MeterFlags::KBPS;
    }
    let bands = bands.into_iter().map(|(rate, band)| {
        let rate = rate.ok_or_else(|| Error::new("must specify a rate for each band"))?;
        Ok(Band { rate, ..band })
    });
    Ok(MeterMod {
        command: MeterCommand::Add,
        config: MeterConfig {
            meter: number.ok_or_else(|| Error::new("must specify a meter"))?,
            flags,
            bands: bands.collect::<Result<_>>()?,
        },
    })
}

fn number_of(text: &str) -> Result<u32> {
    match text {
        "controller" => Ok(crate::model::meter::CONTROLLER),
        "slowpath" => Ok(crate::model::meter::SLOWPATH),
        _ => bounded(text, 32, "meter").map(|number| number as u32),
    }
}

fn band_of(name: &str) -> Result<Band> {
    let kind = match name {
        "drop" => BandKind::Drop,
        "dscp_remark" => BandKind::DscpRemark(0),
        _ => return Err(Error::new(format!("invalid band type {name}"))),
    };
    Ok(Band {
        kind,
        rate: 0,
        burst: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meters_as_they_are_typed_and_printed() {
        let read =
            meter("meter=1 pktps burst stats bands= type=drop rate=5 burst_size=10").unwrap();
        assert_eq!(
            meter("meter=1,pktps,burst,stats,band=type=drop,rate=5,burst_size=10"),
            Ok(read.clone())
        );
        assert_eq!(read.config.meter, 1);
        assert_eq!(
            read.config.flags,
            MeterFlags::PKTPS | MeterFlags::BURST | MeterFlags::STATS
        );
        assert_eq!(
            read.config.bands,
            [Band {
                kind: BandKind::Drop,
                rate: 5,
                burst: 10
            }]
        );
        let two =
            meter("meter=controller,bands=type=drop,rate=9,type=dscp_remark,rate=3,prec_level=2");
        let two = two.unwrap().config;
        assert_eq!(two.meter, crate::model::meter::CONTROLLER);
        assert_eq!(two.flags, MeterFlags::KBPS);
        assert_eq!(two.bands[1].kind, BandKind::DscpRemark(2));
        assert_eq!([two.bands[0].rate, two.bands[1].rate], [9, 3]);
    }

    #[test]
    fn errors_of_meters_name_the_word() {
        let error = |text: &str| meter(text).unwrap_err().to_string();
        assert_eq!(error("pktps"), "must specify a meter");
        assert_eq!(error("meter=1,color"), "unknown keyword color");
        assert_eq!(
            error("meter=1,kbps,pktps"),
            "kbps and pktps exclude each other"
        );
        assert_eq!(error("meter=1,bands=type=boil"), "invalid band type boil");
        assert_eq!(
            error("meter=1,bands=type=drop"),
            "must specify a rate for each band"
        );
        assert_eq!(
            error("meter=1,bands=type=drop,rate=1,prec_level=1"),
            "prec_level is for dscp_remark"
        );
        assert_eq!(error("meter=1,bands=drop"), "invalid band drop");
        assert!(error("meter=1,bands=type=drop,rate=4294967296").contains("too large"));
    }
}
