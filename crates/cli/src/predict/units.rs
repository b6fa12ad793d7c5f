//! Parses and formats numbers with units.

use forecast::Span;

fn number(text: &str, units: &[(&str, f64)], meant: &str) -> Result<f64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')))
        .unwrap_or(text.len());
    // Also 1e6 is a number.
    let (value, unit) = match text.parse::<f64>() {
        Ok(value) => (Some(value), ""),
        Err(_) => (text[..digits].parse::<f64>().ok(), text[digits..].trim()),
    };
    let factor = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|one| one.1);
    match (value, factor) {
        (Some(value), Some(factor)) if value.is_finite() && value >= 0.0 => Ok(value * factor),
        _ => Err(format!("\"{text}\": must be {meant}")),
    }
}

/// Parses bit/s: 500M, 1G, 64k, 1000000.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 7] = [
        ("", 1.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("kbit/s", 1e3),
        ("Mbit/s", 1e6),
        ("Gbit/s", 1e9),
    ];
    let value = number(text, &UNITS, "a rate in bit/s, such as 500M,")?;
    (value > 0.0)
        .then_some(value)
        .ok_or_else(|| format!("\"{text}\": must be a rate above 0"))
}

/// Parses bits as in the schema: 12112, 64k; or bytes with B.
pub(super) fn bits(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 5] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("B", 8.0), ("kB", 8e3)];
    number(
        text,
        &UNITS,
        "a number of bits, such as 12112, or of bytes, such as 1514B,",
    )
}

/// Parses a time into seconds: 200us, 2ms, 1s.
pub(super) fn time(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    number(text, &UNITS, "a time with its unit, such as 2ms,")
}

/// Parses a share: 0.5% or 0.005.
pub(super) fn share(text: &str) -> Result<f64, String> {
    number(
        text,
        &[("", 1.0), ("%", 0.01)],
        "a part, such as 0.5% or 0.005,",
    )
}

/// Parses the size of a packet in bytes.
pub(super) fn size(text: &str) -> Result<f64, String> {
    let bytes = number(text, &[("", 1.0), ("B", 1.0)], "a size in bytes")?;
    (1.0..=65_535.0)
        .contains(&bytes)
        .then_some(bytes * 8.0)
        .ok_or_else(|| format!("\"{text}\": must be a size from 1 to 65535 bytes"))
}

/// Formats a time.
pub(super) fn show(seconds: f64) -> String {
    match seconds {
        s if s.is_infinite() => "without end".into(),
        0.0 => "0".into(),
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Formats a time and its interval.
pub(super) fn show_span(span: &Span) -> String {
    format!(
        "{} ({} to {})",
        show(span.value),
        show(span.low),
        show(span.high)
    )
}

/// Formats a rate.
pub(super) fn show_rate(rate: f64) -> String {
    match rate {
        r if r >= 1e9 => format!("{:.3} Gbit/s", r / 1e9),
        r if r >= 1e6 => format!("{:.3} Mbit/s", r / 1e6),
        r => format!("{:.3} kbit/s", r / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_nonsense_is_refused() {
        assert_eq!(rate("500M"), Ok(5e8));
        assert_eq!(rate("1.5 Gbit/s"), Ok(1.5e9));
        assert_eq!(rate("1e6"), Ok(1e6));
        assert_eq!(bits("1514B"), Ok(12_112.0));
        assert_eq!(time("2ms"), Ok(0.002));
        assert_eq!(share("0.5%"), Ok(0.005));
        assert_eq!(size("64"), Ok(512.0));
        for bad in [
            "", "x", "-5", "0", "nan", "inf", "5X", "1e999", "M", "5 M M", "é",
        ] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        for bad in ["5", "", "-1ms", "ms"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert!(size("0").is_err() && size("70000").is_err());
    }
}
