//! The secret that driver and agents share: a line of text in a file or in the environment.
//!
//! How the two ends prove it to each other is the network layer's (`strake_net::auth`). The
//! caller proves itself first, so a stranger learns nothing from an agent but a nonce. A stranger
//! who can pose as an agent may try to guess a weak secret from a caller's proof, hence the least
//! length.

use std::path::Path;

use strake_net::SharedSecret;

use crate::error::{BenchError, Result};

const SECRET_CHARACTERS_MIN: usize = 16;

/// Takes the secret from a line of text.
pub fn parse(text: &str) -> Result<SharedSecret> {
    let line = text.lines().next().unwrap_or_default().trim();
    if line.chars().count() < SECRET_CHARACTERS_MIN {
        return Err(BenchError::Usage(format!(
            "the secret must have at least {SECRET_CHARACTERS_MIN} characters; make one with \
             `head -c 24 /dev/urandom | base64 > secret`"
        )));
    }
    Ok(SharedSecret::of_words(line.as_bytes()))
}

/// Reads the secret from a file, or from the environment variable `STRAKE_BENCH_SECRET`.
pub fn read(path: Option<&Path>) -> Result<SharedSecret> {
    match path {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            parse(&text.map_err(|error| BenchError::path("read", path, error))?)
        }
        None => match std::env::var("STRAKE_BENCH_SECRET") {
            Ok(text) => parse(&text),
            Err(_) => Err(BenchError::Usage(
                "driver and agents share a secret: give --secret-file FILE, or set \
                 STRAKE_BENCH_SECRET"
                    .into(),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_secret_and_short_ones_are_refused() {
        let secret = parse("correct horse battery staple\n").unwrap();
        assert!(secret == parse("  correct horse battery staple\r\nmore").unwrap());
        assert!(secret != parse("correct horse battery stapler").unwrap());
        assert!(parse("short").is_err());
        assert!(parse("").is_err());
    }
}
