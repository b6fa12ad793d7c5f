//! Numbers as people read them.

/// What stands for a number that is none.
pub const NONE: &str = "–";

/// A measured figure: three significant digits, thousands apart.
pub fn figure(number: f64) -> String {
    if !number.is_finite() {
        return NONE.to_string();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return scientific(number);
    }
    let decimals = match size {
        0.0 => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.09995 => 3,
        s if s >= 0.009995 => 4,
        s if s >= 0.0009995 => 5,
        _ => 6,
    };
    fixed(number, decimals)
}

/// A value that somebody chose, such as a parameter: every digit of it.
pub fn exact(number: f64) -> String {
    if !number.is_finite() {
        return NONE.to_string();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e15).contains(&size) {
        return scientific(number);
    }
    let digits = format!("{number}");
    let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len());
    fixed(number, decimals.min(9))
}

/// With that many decimals, thousands apart, and a real minus.
pub fn fixed(number: f64, decimals: usize) -> String {
    let digits = format!("{:.decimals$}", number.abs());
    let (whole, part) = digits.split_once('.').unwrap_or((&digits, ""));
    let mut text = String::new();
    // What rounds to zero has no sign.
    if number < 0.0 && digits.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
        text.push('−');
    }
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if !part.is_empty() {
        text.push('.');
        text.push_str(part);
    }
    text
}

/// `1.2×10⁻⁵`.
pub fn scientific(number: f64) -> String {
    let digits = format!("{:.1e}", number.abs());
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    let sign = if number < 0.0 { "−" } else { "" };
    let raised = raised(exponent.parse().unwrap_or(0));
    let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
    match mantissa {
        "1" => format!("{sign}10{raised}"),
        _ => format!("{sign}{mantissa}×10{raised}"),
    }
}

/// An exponent, raised: `⁻⁵`.
pub fn raised(exponent: i32) -> String {
    let one = |digit| match digit {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        // Superscripts of 0 and 4 to 9 follow each other.
        digit => char::from_u32('⁰' as u32 + digit as u32 - '0' as u32).unwrap_or(digit),
    };
    exponent.to_string().chars().map(one).collect()
}

/// A ratio: `0.76`, `2.7`, `12,960`, with a multiplication sign.
pub fn times(ratio: f64) -> String {
    match ratio.abs() {
        _ if !ratio.is_finite() => NONE.to_string(),
        size if (9.95..1e15).contains(&size) => format!("{}×", fixed(ratio, 0)),
        size if (0.995..9.95).contains(&size) => format!("{}×", fixed(ratio, 1)),
        size if (0.0995..0.995).contains(&size) => format!("{}×", fixed(ratio, 2)),
        _ => format!("{}×", figure(ratio)),
    }
}

/// A share as percents with a sign: `+3.1%`.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.to_string();
    }
    let percents = share * 100.0;
    let decimals = usize::from(percents.abs() < 10.0);
    let digits = fixed(percents, decimals);
    if percents > 0.0 {
        format!("+{digits}%")
    } else {
        format!("{digits}%")
    }
}

/// A time in the units people use: `0.4 s`, `12 s`, `3 min 20 s`, `1 h 5 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return NONE.to_string();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round().min(1e12) as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, minutes, seconds) {
        (0, 0, s) => format!("{s} s"),
        (0, m, 0) => format!("{m} min"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, 0, _) => format!("{} h", fixed(h as f64, 0)),
        (h, m, _) => format!("{} h {m} min", fixed(h as f64, 0)),
    }
}

/// A number of bytes: `32 KiB`, `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    let mut number = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if number < 1024.0 {
            return format!("{} {unit}", exact((number * 10.0).round() / 10.0));
        }
        number /= 1024.0;
    }
    format!("{} TiB", exact((number * 10.0).round() / 10.0))
}

/// `1 window`, `3 windows`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        fixed(count as f64, 0),
        if count == 1 { one } else { many }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1.00"),
            (14.234, "14.2"),
            (9.999, "10.0"),
            (99.96, "100"),
            (0.85, "0.850"),
            (0.0123, "0.0123"),
            (0.0030531, "0.00305"),
            (12345.6, "12,346"),
            (-1234.0, "−1,234"),
            (1e15, "10¹⁵"),
            (2.5e-7, "2.5×10⁻⁷"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ] {
            assert_eq!(figure(number), text, "{number}");
        }
    }

    #[test]
    fn parameters_keep_their_digits() {
        for (number, text) in [
            (64.0, "64"),
            (1_000_000.0, "1,000,000"),
            (0.995, "0.995"),
            (-3.0, "−3"),
        ] {
            assert_eq!(exact(number), text);
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(duration(0.42), "0.4 s");
        assert_eq!(duration(200.0), "3 min 20 s");
        assert_eq!(duration(3900.0), "1 h 5 min");
        assert_eq!(duration(f64::NAN), "–");
        assert_eq!(bytes(32 << 10), "32 KiB");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(percent(0.0312), "+3.1%");
        assert_eq!(percent(-0.25), "−25%");
        assert_eq!(
            [0.55, 0.996, 3.05, 26.6, 12960.0].map(times),
            ["0.55×", "1.0×", "3.0×", "27×", "12,960×"]
        );
        assert_eq!(times(f64::INFINITY), "–");
    }
}
