//! How figures are written: with as many digits as they deserve, in the unit that reads best.

/// A figure with as many decimals as it deserves: three significant digits at least.
pub fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        "-".into()
    } else if magnitude >= 100.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 1.0 || magnitude == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// Bytes per second as MiB/s with two decimals, the form of the p690/x335 tables.
pub fn mib(bytes_per_second: f64) -> String {
    format!("{:.2}", bytes_per_second / (1024.0 * 1024.0))
}

/// Microseconds in the unit that reads best.
pub fn micros(us: f64) -> String {
    if us >= 1e6 {
        format!("{} s", figure(us / 1e6))
    } else if us >= 1e3 {
        format!("{} ms", figure(us / 1e3))
    } else {
        format!("{} µs", figure(us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        let shown = [12_345.6, 99.94, 1.234, 0.0, 0.0123].map(figure);
        assert_eq!(shown, ["12346", "99.9", "1.23", "0.00", "0.012"]);
        assert_eq!(figure(f64::NAN), "-");
        assert_eq!(micros(1_234_000.0), "1.23 s");
        assert_eq!(micros(12_340.0), "12.3 ms");
        assert_eq!(micros(7.0), "7.00 µs");
    }
}
