//! The data protocol of a network test: the bytes that follow the frames on a data connection.
//!
//! ```text
//! header, 16 bytes:  0 kind u8 · 1 status u8 · 2 zero u16 · 4 length u32 LE · 8 sequence u64 LE
//!
//! write    caller: header(1) data[length]        server: header(1, status)
//! read     caller: header(2)                     server: header(2) data[length]
//! nwrite   caller: header(3)   server: header(5) caller: data[length]   server: header(3, status)
//! ping     caller: header(4)                     server: header(4)
//! ```
//!
//! `nwrite` works as an NSD server takes a write: the server is told of the write, and fetches the
//! data when one of its workers is free. Status 1 says that the data differ from the contents that
//! belong to the sequence number. The peer has proven the secret before. The data stream carries no
//! MAC, because the network itself is to be measured.

use std::io::{Read, Write};

use crate::error::{BenchError, Result};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// The largest message of a test.
pub const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// The smallest: a page.
pub const MESSAGE_BYTES_MIN: u32 = 4 << 10;

/// What a header announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The caller sends data.
    Write = 1,
    /// The server sends data.
    Read = 2,
    /// The server is asked to fetch data.
    NsdWrite = 3,
    /// Nothing follows.
    Ping = 4,
    /// The server fetches: send now.
    Fetch = 5,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it announces.
    pub kind: Kind,
    /// True if verified data was wrong.
    pub is_wrong: bool,
    /// Bytes of data that belong to the message.
    pub length: u32,
    /// Names the message and its contents.
    pub sequence: u64,
}

impl Header {
    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.is_wrong);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Decodes a header. Bytes that are not exactly a header are refused.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let kind = match bytes[0] {
            1 => Kind::Write,
            2 => Kind::Read,
            3 => Kind::NsdWrite,
            4 => Kind::Ping,
            5 => Kind::Fetch,
            other => return Err(BenchError::Protocol(format!("message kind {other}"))),
        };
        let length = <[u8; 4]>::try_from(&bytes[4..8]).expect("invariant: four bytes");
        let sequence = <[u8; 8]>::try_from(&bytes[8..]).expect("invariant: eight bytes");
        let header = Header {
            kind,
            is_wrong: bytes[1] == 1,
            length: u32::from_le_bytes(length),
            sequence: u64::from_le_bytes(sequence),
        };
        if bytes[1] > 1 || bytes[2..4] != [0, 0] || header.length > MESSAGE_BYTES_MAX {
            return Err(BenchError::Protocol("a malformed message header".into()));
        }
        Ok(header)
    }

    /// Sends it.
    pub fn send(self, stream: &mut impl Write) -> Result<()> {
        stream.write_all(&self.encode()).map_err(broken)
    }

    /// Receives one.
    pub fn receive(stream: &mut impl Read) -> Result<Header> {
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes).map_err(broken)?;
        Header::decode(&bytes)
    }

    /// Receives the answer to this header. It must be of the expected kind and have the same
    /// sequence number.
    pub fn receive_answer(self, kind: Kind, stream: &mut impl Read) -> Result<()> {
        let answer = Header::receive(stream)?;
        if answer.kind != kind || answer.sequence != self.sequence {
            return Err(BenchError::Protocol(format!("{answer:?} in answer to {self:?}")));
        }
        if answer.is_wrong {
            return Err(BenchError::Verification(
                "a message arrived with other contents than were sent".into(),
            ));
        }
        Ok(())
    }
}

/// An error of a data connection.
pub fn broken(error: std::io::Error) -> BenchError {
    BenchError::system("a data connection broke", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Dice;

    #[test]
    fn golden_header() {
        let header = Header {
            kind: Kind::NsdWrite,
            is_wrong: true,
            length: 4 << 20,
            sequence: 0x0102_0304_0506_0708,
        };
        let bytes = [3, 1, 0, 0, 0, 0, 64, 0, 8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes).unwrap(), header);
    }

    #[test]
    fn headers_read_back_and_noise_is_refused_or_reads_back() {
        for seed in 0..20_000 {
            let mut dice = Dice::new(seed);
            let mut bytes = [0; HEADER_BYTES];
            bytes[0] = dice.below(8) as u8;
            bytes[1] = dice.below(3) as u8;
            bytes[2] = u8::from(dice.below(10) == 0);
            bytes[4..8].copy_from_slice(&(dice.roll() as u32 >> dice.below(32)).to_le_bytes());
            bytes[8..].copy_from_slice(&dice.roll().to_le_bytes());
            if let Ok(header) = Header::decode(&bytes) {
                assert_eq!(header.encode(), bytes, "seed {seed}");
                assert!(header.length <= MESSAGE_BYTES_MAX, "seed {seed}");
            }
        }
    }
}
