//! One frame on a stream: the layout stands byte by byte in `strake-proto`'s `nsd`.
//!
//! A reader trusts nothing: lengths are checked against limits before memory is taken, the head
//! against its own CRC before its lengths are believed, the message against its CRC and the
//! authentication code before the payload is read, the payload against its CRC or its tag before
//! anyone sees it. After any error the stream has no meaning any more and must be closed.
//!
//! The authentication code and the encryption are those of [`crate::seal`].
//!
//! **Versions.** A hello says which protocol version its sender speaks at most, and is itself the
//! same in all of them. From the hellos on, both ends use the lower one of the two. A frame of
//! another version ends the connection. So nobody in between can talk the ends into an older
//! version: one that changes a hello before there are keys has the ends disagree.

use crate::seal::{CODE_BYTES, Forged, newest_protocol};
use std::io::{self, IoSlice, Read, Write};
use strake_proto::feature::OLDEST_PROTOCOL;
use strake_proto::limits::{MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX};
use strake_proto::{Error, ErrorKind, Result};

pub use crate::seal::Seal;

const MAGIC: [u8; 4] = *b"SRPC";
/// The part of the head that the code covers.
const COVERED_BYTES: usize = 40;
/// What its own CRC covers.
const CHECKED_BYTES: usize = 36;
/// The longest message of a request from server to client, or of its reply; they have no payload.
pub const BACK_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The message of an answer to a ping.
pub const PONG_BYTES: usize = 16;
/// Bytes before the message.
pub const HEAD_BYTES: usize = 56;
const _: () = assert!(COVERED_BYTES + CODE_BYTES == HEAD_BYTES);

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Client to NSD server.
    NsdRequest = 1,
    /// NSD server to client.
    NsdReply = 2,
    /// Client to metadata.
    MetaRequest = 3,
    /// Metadata to client.
    MetaReply = 4,
    /// Handshake, both ways.
    Hello = 5,
    /// Server to client; see [`crate::back`].
    BackRequest = 6,
    /// Client to server.
    BackReply = 7,
    /// Part of a conversation, both ways; see [`crate::talk`].
    Talk = 8,
    /// Node to node; see [`crate::control`].
    ControlRequest = 9,
    /// The answer.
    ControlReply = 10,
    /// Client to server: whether it is there; see [`crate::ping`].
    Ping = 11,
    /// The answer.
    Pong = 12,
}

impl FrameKind {
    fn from_wire(kind: u16) -> Option<FrameKind> {
        let all = [
            FrameKind::NsdRequest,
            FrameKind::NsdReply,
            FrameKind::MetaRequest,
            FrameKind::MetaReply,
            FrameKind::Hello,
            FrameKind::BackRequest,
            FrameKind::BackReply,
            FrameKind::Talk,
            FrameKind::ControlRequest,
            FrameKind::ControlReply,
            FrameKind::Ping,
            FrameKind::Pong,
        ];
        all.into_iter().find(|known| *known as u16 == kind)
    }
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// Which call it belongs to.
    pub number: u64,
    /// The encoded message.
    pub message: Vec<u8>,
    /// The bulk data beside it.
    pub payload: Vec<u8>,
}

/// How long the parts of a frame may be.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    /// Bytes of the message.
    pub message_bytes: usize,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl FrameLimits {
    /// Of an established session.
    pub const SESSION: FrameLimits =
        FrameLimits { message_bytes: MESSAGE_BYTES_MAX, payload_bytes: PAYLOAD_BYTES_MAX };
    /// Of strangers: a hello is short, and takes no memory worth the name.
    pub const HELLO: FrameLimits = FrameLimits { message_bytes: 1024, payload_bytes: 0 };

    /// These, or those of the kind if they are lower.
    fn of(self, kind: FrameKind) -> FrameLimits {
        match kind {
            FrameKind::BackRequest | FrameKind::BackReply => FrameLimits {
                message_bytes: self.message_bytes.min(BACK_MESSAGE_BYTES_MAX),
                payload_bytes: 0,
            },
            FrameKind::Ping => FrameLimits { message_bytes: 0, payload_bytes: 0 },
            FrameKind::Pong => FrameLimits { message_bytes: PONG_BYTES, payload_bytes: 0 },
            _ => self,
        }
    }
}

/// Writes one frame.
///
/// # Errors
/// `TooBig` if a part is longer than any session allows (nothing is written then); the stream's.
pub fn write_frame(
    out: &mut dyn Write,
    seal: &mut Seal,
    kind: FrameKind,
    number: u64,
    message: &[u8],
    payload: &[u8],
) -> Result<()> {
    let limits = FrameLimits::SESSION.of(kind);
    if message.len() > limits.message_bytes || payload.len() > limits.payload_bytes {
        let (message, payload) = (message.len(), payload.len());
        let detail = format!("a message of {message} bytes with {payload} of payload is too long");
        return Err(Error::new(ErrorKind::TooBig, detail));
    }
    let mut head = [0u8; HEAD_BYTES];
    head[0..4].copy_from_slice(&MAGIC);
    let version = match kind {
        FrameKind::Hello => newest_protocol(),
        _ => seal.protocol(),
    };
    head[4..6].copy_from_slice(&version.to_le_bytes());
    head[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..20].copy_from_slice(&(message.len() as u32).to_le_bytes());
    head[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    if !seal.is_encrypting() {
        head[24..28].copy_from_slice(&crc32c::crc32c(message).to_le_bytes());
        head[28..32].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    }
    let check = crc32c::crc32c(&head[..CHECKED_BYTES]);
    head[CHECKED_BYTES..COVERED_BYTES].copy_from_slice(&check.to_le_bytes());
    let (covered, code) = head.split_at_mut(COVERED_BYTES);
    let sealed = seal.seal(covered, message, payload);
    code.copy_from_slice(&sealed.code);
    let [first, second] = sealed.parts;
    let mut parts = [IoSlice::new(&head), IoSlice::new(first), IoSlice::new(second)];
    write_all_parts(out, &mut parts)?;
    Ok(())
}

fn write_all_parts(out: &mut dyn Write, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match out.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

/// The believed contents of a head.
struct Head {
    kind: FrameKind,
    version: u16,
    number: u64,
    message_bytes: usize,
    payload_bytes: usize,
    message_crc: u32,
    payload_crc: u32,
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, detail)
}

impl Head {
    /// `agreed` is the version of all frames but hellos.
    fn decode(head: &[u8; HEAD_BYTES], limits: FrameLimits, agreed: u16) -> Result<Head> {
        let word = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("invariant: four bytes");
            u32::from_le_bytes(bytes)
        };
        if head[0..4] != MAGIC {
            return Err(corrupt("the peer does not speak Strake's protocol"));
        }
        if word(CHECKED_BYTES) != crc32c::crc32c(&head[..CHECKED_BYTES]) {
            return Err(corrupt("a frame's head does not match its checksum"));
        }
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version < OLDEST_PROTOCOL {
            let detail = format!(
                "the peer speaks protocol {version} at most and this program {OLDEST_PROTOCOL} at \
                 least: install a newer version of strake there"
            );
            return Err(Error::new(ErrorKind::NotSupported, detail));
        }
        let kind = FrameKind::from_wire(u16::from_le_bytes([head[6], head[7]]))
            .ok_or_else(|| corrupt("a frame of unknown kind"))?;
        if kind != FrameKind::Hello && version != agreed {
            let detail = format!("a frame of protocol {version}, where {agreed} was agreed");
            return Err(Error::new(ErrorKind::NotSupported, detail));
        }
        let limits = limits.of(kind);
        let (message_bytes, payload_bytes) = (word(16) as usize, word(20) as usize);
        if message_bytes > limits.message_bytes || payload_bytes > limits.payload_bytes {
            let detail =
                format!("a frame of {message_bytes} and {payload_bytes} bytes is too long");
            return Err(corrupt(detail));
        }
        if word(32) != 0 {
            return Err(corrupt("a frame's reserved bytes are not zero"));
        }
        let number = u64::from(word(8)) | u64::from(word(12)) << 32;
        let (message_crc, payload_crc) = (word(24), word(28));
        Ok(Head { kind, version, number, message_bytes, payload_bytes, message_crc, payload_crc })
    }
}

/// Reads one frame; `None` at the stream's end between frames. `buffer` gives the memory for a
/// payload of that length: exactly as long, contents of no matter.
///
/// # Errors
/// `Corrupt` for whatever is no frame, `NotSupported` for another protocol version, `Access` for a
/// wrong authentication code, `Unreachable` for an end within a frame, else the stream's.
pub fn read_frame(
    input: &mut dyn Read,
    seal: &mut Seal,
    limits: FrameLimits,
    buffer: &mut dyn FnMut(usize) -> Vec<u8>,
) -> Result<Option<Frame>> {
    let mut head = [0u8; HEAD_BYTES];
    if !read_head(input, &mut head)? {
        return Ok(None);
    }
    let believed = Head::decode(&head, limits, seal.protocol())?;
    let code = head[COVERED_BYTES..].try_into().expect("invariant: a code has 16 bytes");
    let mut message = vec![0; believed.message_bytes];
    read_exact(input, &mut message)?;
    let has_checksums = !seal.is_encrypting();
    if has_checksums && crc32c::crc32c(&message) != believed.message_crc {
        return Err(corrupt("a message does not match its checksum"));
    }
    let forged = |Forged| Error::new(ErrorKind::Access, "a frame's authentication code is wrong");
    seal.open_message(&head[..COVERED_BYTES], &mut message, &code).map_err(forged)?;
    if !has_checksums && (believed.message_crc, believed.payload_crc) != (0, 0) {
        return Err(corrupt("an encrypted frame has checksums"));
    }
    let (mut payload, mut tag) = (Vec::new(), [0; CODE_BYTES]);
    if believed.payload_bytes > 0 {
        payload = buffer(believed.payload_bytes);
        assert_eq!(payload.len(), believed.payload_bytes, "a buffer of the length asked for");
        read_exact(input, &mut payload)?;
        read_exact(input, &mut tag[..seal.payload_tag_bytes(believed.payload_bytes)])?;
    }
    if has_checksums && crc32c::crc32c(&payload) != believed.payload_crc {
        return Err(corrupt("a payload does not match its checksum"));
    }
    let length = message.len();
    seal.open_payload(length, &mut payload, &code, &tag).map_err(forged)?;
    let Head { kind, version, number, .. } = believed;
    if kind == FrameKind::Hello {
        seal.speak_at_most(version);
    }
    Ok(Some(Frame { kind, number, message, payload }))
}

/// Reads a head; false at the stream's end before its first byte.
fn read_head(input: &mut dyn Read, head: &mut [u8; HEAD_BYTES]) -> Result<bool> {
    loop {
        match input.read(&mut head[..1]) {
            Ok(0) => return Ok(false),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    read_exact(input, &mut head[1..])?;
    Ok(true)
}

fn read_exact(input: &mut dyn Read, bytes: &mut [u8]) -> Result<()> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Unreachable, "the peer closed the connection within a frame")
        }
        _ => error.into(),
    })
}

#[cfg(test)]
#[path = "frame_test.rs"]
mod frame_test;
