//! The text by which a node joins a cluster: where the leader is, who the node will be, and what
//! proves both.
//!
//! ```text
//! "strake1-" and hexadecimal digits of: [`JoinToken`] in postcard, then its CRC32C, little-endian
//! ```
//!
//! A token holds the cluster's secret. Whoever has it can talk to the cluster like one of its
//! nodes, so it is to be carried like a password. Joining with it works once.

use super::records::Invitation;
use serde::{Deserialize, Serialize};
use strake_env::net::SocketAddr;
use strake_proto::{ClusterId, Error, ErrorKind, Result};

const PREFIX: &str = "strake1-";
/// Longer texts are no tokens.
const DIGITS_MAX: usize = 4096;

/// What a token says.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinToken {
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// The leader's address.
    pub(crate) leader: SocketAddr,
    /// The name of the node that joins.
    pub(crate) node: String,
    /// The cluster's secret, as its file has it.
    pub(crate) secret: String,
    /// Proves that the leader invited this node, and that nobody used the token before.
    pub(crate) invitation: Invitation,
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "JoinToken({} at {})", self.node, self.leader)
    }
}

impl JoinToken {
    /// The text.
    ///
    /// # Errors
    /// `Internal` if it has none.
    pub(crate) fn text(&self) -> Result<String> {
        let mut bytes = postcard::to_allocvec(self)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{PREFIX}{digits}"))
    }

    /// Reads a text that somebody has copied.
    ///
    /// # Errors
    /// `Invalid` if it is not whole.
    pub(crate) fn parse(text: &str) -> Result<JoinToken> {
        let bad = || {
            let detail = "this is no join token, or not all of it: copy the whole line that \
                          `strake node add` printed, from strake1- to its end";
            Error::new(ErrorKind::Invalid, detail)
        };
        let digits = text.trim().strip_prefix(PREFIX).ok_or_else(bad)?;
        if digits.len() > DIGITS_MAX || digits.len() % 2 != 0 || !digits.is_ascii() {
            return Err(bad());
        }
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| bad());
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect::<Result<_>>()?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(bad)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(bad());
        }
        match postcard::take_from_bytes(body) {
            Ok((token, [])) => Ok(token),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            cluster: ClusterId([3; 16]),
            leader: SocketAddr::from(([10, 0, 0, 1], 7790)),
            node: "n2".to_owned(),
            secret: "ab".repeat(32),
            invitation: Invitation([9; 16]),
        }
    }

    #[test]
    fn a_token_says_what_it_was_made_of() {
        let text = token().text().expect("encodes");
        assert_eq!(JoinToken::parse(&format!(" {text}\n")).expect("reads"), token());
        assert!(text.starts_with("strake1-03030303030303030303030303030303000a000001ee3c026e32"));
    }

    #[test]
    fn a_token_that_was_copied_badly_is_refused_with_advice() {
        let text = token().text().expect("encodes");
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let bad = String::from_utf8(bytes).expect("ASCII");
            let error = JoinToken::parse(&bad).expect_err("another character");
            assert!(error.to_string().contains("copy the whole line"), "{error}");
            assert!(JoinToken::parse(&text[..at]).is_err(), "{at} characters");
        }
        assert!(JoinToken::parse("strake1-ää").is_err());
    }
}
