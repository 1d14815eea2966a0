//! A join token: the line of text with which a machine becomes a node.
//!
//! It carries where to ask, which cluster to believe, and a secret that is good for one node, once:
//!
//! ```text
//! strake-join- ‖ hexadecimal of
//!   version (1)  1
//!   body         postcard of (address: text, authority: 32 bytes, secret: 16 bytes)
//!   check (4)    CRC32C of version and body, little-endian
//! ```
//!
//! `authority` is the SHA-256 of the certificate of the cluster's authority: the joiner verifies
//! the cluster before it says anything. Whoever reads the token before it is used can join in the
//! node's place; the issuer then refuses the node, which shows it.

use crate::certificate::Fingerprint;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use strake_env::net::SocketAddr;
use strake_proto::{Error, ErrorKind, Result};

const PREFIX: &str = "strake-join-";
const VERSION: u8 = 1;
/// Longer texts are no tokens.
const TEXT_BYTES_MAX: usize = 1024;
pub(crate) const SECRET_BYTES: usize = 16;

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The node that issues the certificate.
    pub address: SocketAddr,
    /// The cluster's authority.
    pub authority: Fingerprint,
    pub(crate) secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "JoinToken({}, …)", self.address)
    }
}

#[derive(Serialize, Deserialize)]
struct Body {
    address: String,
    authority: [u8; 32],
    secret: [u8; SECRET_BYTES],
}

/// What the issuer keeps of a token's secret.
pub(crate) fn digest(secret: &[u8; SECRET_BYTES]) -> [u8; 32] {
    Sha256::new().chain_update("strake join token\0").chain_update(secret).finalize().into()
}

/// The token's text.
impl fmt::Display for JoinToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, authority) = (self.address.to_string(), self.authority.0);
        let body = Body { address, authority, secret: self.secret };
        let mut bytes = vec![VERSION];
        bytes.extend(postcard::to_allocvec(&body).map_err(|_| fmt::Error)?);
        let check = crc32c::crc32c(&bytes);
        bytes.extend(check.to_le_bytes());
        out.write_str(PREFIX)?;
        bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<JoinToken> {
        let text = text.trim();
        let bad = |why: &str| {
            let detail = format!("{why}: copy the whole line that `strake node add` printed");
            Error::new(ErrorKind::Invalid, detail)
        };
        let digits = text.strip_prefix(PREFIX).ok_or_else(|| bad("this is no join token"))?;
        let bytes = parse_digits(digits).ok_or_else(|| bad("the join token is damaged"))?;
        let split = bytes.len().checked_sub(4).ok_or_else(|| bad("the join token is cut short"))?;
        let (covered, check) = bytes.split_at(split);
        if crc32c::crc32c(covered).to_le_bytes() != check {
            return Err(bad("the join token is damaged"));
        }
        let Some((&VERSION, body)) = covered.split_first() else {
            let detail = "the join token is of another version: run the same version of strake on \
                          all nodes";
            return Err(Error::new(ErrorKind::NotSupported, detail));
        };
        let Ok((Body { address, authority, secret }, [])) = postcard::take_from_bytes(body) else {
            return Err(bad("the join token is damaged"));
        };
        let address = address.parse().map_err(|_| bad("the join token names no address"))?;
        Ok(JoinToken { address, authority: Fingerprint(authority), secret })
    }
}

fn parse_digits(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || digits.len() > TEXT_BYTES_MAX {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs.map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

#[cfg(test)]
#[path = "join_token_test.rs"]
mod join_token_test;
