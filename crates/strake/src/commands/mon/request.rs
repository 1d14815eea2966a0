//! Reads the requests of `strake mon`: one a line, with the words of `mmpmon`.

use strake_observe::{HistogramOrder, Pattern};
use strake_proto::{Error, ErrorKind, Result};

/// What the file is for that a request names, and everything else that a request can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The counters of each file system.
    FsIo,
    /// The sums of the counters.
    Io,
    /// Set the counters to 0.
    Reset,
    /// The version.
    Version,
    /// About the histograms. `Err` has what is wrong with the ranges.
    Histogram {
        words: String,
        order: std::result::Result<HistogramOrder, String>,
        pattern_only: bool,
    },
    /// About the list of nodes.
    Nodes { words: String, order: NodesOrder },
    /// Read requests from this file.
    Source(String),
}

/// What somebody wants of the list of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodesOrder {
    Add(Vec<String>),
    New(Vec<String>),
    Remove(Vec<String>),
    Delete,
    Show,
}

/// A line of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// It is not repeated.
    pub(super) once: bool,
    pub(super) request: Request,
}

/// Reads a line. `None` if it is empty or a comment.
///
/// # Errors
/// `Invalid` if it is no request; the message says what there is.
pub(super) fn parse(line: &str) -> Result<Option<Line>> {
    let mut words = line.split_whitespace().peekable();
    if words.peek().is_none_or(|word| word.starts_with('#')) {
        return Ok(None);
    }
    let once = words.next_if_eq(&"once").is_some();
    let words: Vec<&str> = words.collect();
    let request = match words[..] {
        ["fs_io_s"] => Request::FsIo,
        ["io_s"] => Request::Io,
        ["reset"] => Request::Reset,
        ["ver"] => Request::Version,
        ["source", file] => Request::Source(file.to_owned()),
        ["rhist", ref rest @ ..] => histogram(rest).ok_or_else(|| unknown(line))?,
        ["nlist", ref rest @ ..] => nodes(rest).ok_or_else(|| unknown(line))?,
        _ => return Err(unknown(line)),
    };
    Ok(Some(Line { once, request }))
}

fn unknown(line: &str) -> Error {
    let line = line.trim();
    let detail = format!(
        "'{line}' is no request: there are fs_io_s, io_s, reset, ver, rhist on|off|s|p|reset, \
         rhist nr SIZES LATENCIES, nlist s|del|add|new|sub, source FILE, and once before any of them"
    );
    Error::new(ErrorKind::Invalid, detail)
}

fn histogram(words: &[&str]) -> Option<Request> {
    let order = match words {
        ["on"] => Ok(HistogramOrder::On),
        ["off"] => Ok(HistogramOrder::Off),
        ["reset"] => Ok(HistogramOrder::Reset),
        ["s" | "p"] => Ok(HistogramOrder::Show),
        ["nr", sizes, latencies] => match pattern(sizes, latencies) {
            Some(pattern) => Ok(HistogramOrder::Ranges(pattern)),
            None => Err("range error".to_owned()),
        },
        _ => return None,
    };
    Some(Request::Histogram { words: words.join(" "), order, pattern_only: *words == ["p"] })
}

/// The pattern that two operands name. `=` stands for the usual ranges.
fn pattern(sizes: &str, latencies: &str) -> Option<Pattern> {
    let usual = Pattern::default();
    let sizes = if sizes == "=" { usual.sizes } else { numbers(sizes, size)? };
    let latencies = if latencies == "=" { usual.latencies } else { numbers(latencies, tenths)? };
    Pattern::new(sizes, latencies)
}

fn numbers(text: &str, number: fn(&str) -> Option<u64>) -> Option<Vec<u64>> {
    text.strip_suffix(';').unwrap_or(text).split(';').map(number).collect()
}

fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    whole(digits)?.checked_mul(1 << shift)
}

/// Milliseconds with at most one decimal, in tenths.
fn tenths(text: &str) -> Option<u64> {
    match text.split_once('.') {
        None => whole(text)?.checked_mul(10),
        Some((before, after)) if after.len() == 1 => {
            whole(before)?.checked_mul(10)?.checked_add(whole(after)?)
        }
        Some(_) => None,
    }
}

/// Digits only.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn nodes(words: &[&str]) -> Option<Request> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let order = match words {
        ["s"] => NodesOrder::Show,
        ["del"] => NodesOrder::Delete,
        ["add", rest @ ..] if !rest.is_empty() => NodesOrder::Add(names(rest)),
        ["new", rest @ ..] if !rest.is_empty() => NodesOrder::New(names(rest)),
        ["sub", rest @ ..] if !rest.is_empty() => NodesOrder::Remove(names(rest)),
        _ => return None,
    };
    Some(Request::Nodes { words: words.join(" "), order })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Line {
        parse(line).expect("a request").expect("not empty")
    }

    #[test]
    fn blanks_and_comments_are_passed_over_and_once_may_stand_before_a_request() {
        assert_eq!(parse("").expect("good"), None);
        assert_eq!(parse("   ").expect("good"), None);
        assert_eq!(parse("  # io_s").expect("good"), None);
        assert_eq!(one("  io_s "), Line { once: false, request: Request::Io });
        assert_eq!(one("once fs_io_s"), Line { once: true, request: Request::FsIo });
        assert_eq!(one("once source a"), Line { once: true, request: Request::Source("a".into()) });
    }

    #[test]
    fn ranges_are_read_as_documented() {
        let Request::Histogram { words, order, .. } =
            one("rhist nr 64k;256k;1m;4m; 1;10;30;100").request
        else {
            panic!("another request")
        };
        assert_eq!(words, "nr 64k;256k;1m;4m; 1;10;30;100");
        let sizes = vec![64 << 10, 256 << 10, 1 << 20, 4 << 20];
        let ranges = Pattern { sizes, latencies: vec![10, 100, 300, 1000] };
        assert_eq!(order, Ok(HistogramOrder::Ranges(ranges)));
        assert_eq!(pattern("512;1m", "1.3;4.5;10").expect("good").latencies, [13, 45, 100]);
        assert_eq!(pattern("=", "="), Some(Pattern::default()));
        for (sizes, latencies) in [
            ("512;1m;4m", "1;4;8;2"),
            ("4m;1m", "1"),
            ("1g", "1"),
            ("", "1"),
            ("1;;2", "1"),
            ("k", "1"),
            ("+1", "1"),
            ("99999999999999m", "1"),
            ("1", "1.25"),
            ("1", ".5."),
            ("1", "-1"),
            ("ä", "1"),
        ] {
            assert_eq!(pattern(sizes, latencies), None, "{sizes} {latencies}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_what_there_is() {
        for line in [
            "once",
            "once #",
            "io_s now",
            "iosss",
            "rhist",
            "rhist nr 1",
            "rhist nr 1 2 3",
            "rhist maybe",
            "nlist add",
            "nlist s node1",
            "source",
            "once once io_s",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("fs_io_s"), "{error}");
        }
    }
}
