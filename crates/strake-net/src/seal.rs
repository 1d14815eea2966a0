//! What protects the frames of one direction of a connection.
//!
//! - *Nothing*, before keys are agreed: the code in the head is zero.
//! - *A code* (secret handshake, and `AUTHONLY`): the first 16 bytes of
//!   `HMAC-SHA256(key, counter (8, little-endian) ‖ bytes 0..40 of the frame ‖ message)`.
//!   The payload is bound by its CRC32C in the head.
//! - *Encryption* (`TLS`): message and payload are sealed with AES-256-GCM. The head stays
//!   readable: kind, number and lengths. Its checksums of message and payload are 0, because they
//!   would tell an eavesdropper something about the contents. The message's tag stands where the
//!   code stands; the payload's tag (16 bytes) follows the payload, if there is one.
//!
//! `counter` counts the frames of this direction from 0 and is not sent, so a frame that is
//! repeated, dropped or moved does not verify.
//!
//! **Nonces.** 4 zero bytes ‖ `2 · counter` (8, little-endian) for the message, `2 · counter + 1`
//! for the payload. The message's additional data are bytes 0..40 of the frame, the payload's are
//! the message's tag. So no nonce is used twice under one key, and no payload fits another message.
//!
//! **Keys wear out.** The more is sealed under one key of AES-GCM, the easier it is to tell
//! ciphertext from chance. After [`KEY_BYTES_MAX`] bytes both ends go on with
//! `HMAC-SHA256(key, "strake next key")`. They count the same frames, so they change at the same
//! one.

use hmac::{Hmac, Mac};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use sha2::Sha256;
use strake_proto::feature;

/// The newest protocol version that this end says that it speaks.
pub(crate) fn newest_protocol() -> u16 {
    #[cfg(test)]
    if let Some(protocol) = SPOKEN.get() {
        return protocol;
    }
    feature::understood().protocol()
}

#[cfg(test)]
thread_local! {
    /// Lets a thread of a test greet as an older program.
    pub(crate) static SPOKEN: std::cell::Cell<Option<u16>> = const { std::cell::Cell::new(None) };
}

/// A code or a tag.
pub(crate) const CODE_BYTES: usize = 16;
/// Sealed under one key: 64 GiB are 2³² blocks of the cipher, far below the 2³⁸ bytes that RFC 8446
/// (5.5) allows for one key.
const KEY_BYTES_MAX: u64 = 64 << 30;

/// One direction's protection, with its frame counter.
#[cfg_attr(test, derive(Clone))]
pub struct Seal {
    kind: Kind,
    counter: u64,
    /// The protocol version of this direction's frames; until hellos are exchanged, the newest.
    protocol: u16,
}

#[cfg_attr(test, derive(Clone))]
enum Kind {
    None,
    Code(Hmac<Sha256>),
    Encrypted(Box<Encryption>),
}

#[cfg_attr(test, derive(Clone))]
struct Encryption {
    secret: [u8; 32],
    key: LessSafeKey,
    /// Bytes that may yet be sealed under this key.
    bytes_left: u64,
    bytes_max: u64,
    /// Where what is sent is encrypted; kept for its memory.
    scratch: Vec<u8>,
}

/// A frame's parts ready to be sent.
pub(crate) struct Sealed<'a> {
    /// For the head.
    pub(crate) code: [u8; CODE_BYTES],
    /// What follows the head.
    pub(crate) parts: [&'a [u8]; 2],
}

/// The code of a frame is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Forged;

impl Seal {
    /// Before keys are agreed: the code is zero.
    pub fn none() -> Seal {
        Seal::of(Kind::None)
    }

    /// Codes under a session's key.
    pub fn new(key: &[u8; 32]) -> Seal {
        Seal::of(Kind::Code(hmac(key)))
    }

    /// Encryption under a session's key.
    pub fn encrypting(key: &[u8; 32]) -> Seal {
        Seal::of(Kind::Encrypted(Box::new(Encryption::new(key, KEY_BYTES_MAX))))
    }

    /// The same with keys that wear out sooner, for tests.
    #[cfg(test)]
    pub(crate) fn encrypting_with(key: &[u8; 32], bytes_max: u64) -> Seal {
        Seal::of(Kind::Encrypted(Box::new(Encryption::new(key, bytes_max))))
    }

    fn of(kind: Kind) -> Seal {
        Seal { kind, counter: 0, protocol: newest_protocol() }
    }

    /// The protocol version of this direction's frames.
    pub fn protocol(&self) -> u16 {
        self.protocol
    }

    /// The peer speaks no newer protocol version than this one.
    pub(crate) fn speak_at_most(&mut self, protocol: u16) {
        self.protocol = self.protocol.min(protocol);
    }

    /// True if message and payload are encrypted; then the head has no checksums of them.
    pub(crate) fn is_encrypting(&self) -> bool {
        matches!(self.kind, Kind::Encrypted(_))
    }

    /// Bytes that follow a payload of this length.
    pub(crate) fn payload_tag_bytes(&self, payload_bytes: usize) -> usize {
        if self.is_encrypting() && payload_bytes > 0 { CODE_BYTES } else { 0 }
    }

    /// Protects the next frame that is sent; `head` are its first 40 bytes.
    pub(crate) fn seal<'a>(
        &'a mut self,
        head: &[u8],
        message: &'a [u8],
        payload: &'a [u8],
    ) -> Sealed<'a> {
        let counter = self.counter;
        self.counter += 1;
        match &mut self.kind {
            Kind::None => Sealed { code: [0; CODE_BYTES], parts: [message, payload] },
            Kind::Code(key) => {
                let mut code = [0; CODE_BYTES];
                let whole = running_code(key, counter, head, message).finalize().into_bytes();
                code.copy_from_slice(&whole[..CODE_BYTES]);
                Sealed { code, parts: [message, payload] }
            }
            Kind::Encrypted(encryption) => {
                let code = encryption.seal(counter, head, message, payload);
                Sealed { code, parts: [&encryption.scratch, &[]] }
            }
        }
    }

    /// Verifies the head and the message of the next frame that is received, and decrypts the
    /// message in its place.
    pub(crate) fn open_message(
        &mut self,
        head: &[u8],
        message: &mut [u8],
        code: &[u8; CODE_BYTES],
    ) -> Result<(), Forged> {
        let counter = self.counter;
        self.counter += 1;
        let is_genuine = match &mut self.kind {
            Kind::None => *code == [0; CODE_BYTES],
            // Compares in constant time.
            Kind::Code(key) => {
                running_code(key, counter, head, message).verify_truncated_left(code).is_ok()
            }
            Kind::Encrypted(encryption) => {
                let nonce = nonce(2 * counter);
                encryption.open(nonce, head, *code, message)
            }
        };
        if is_genuine { Ok(()) } else { Err(Forged) }
    }

    /// Verifies and decrypts the payload of the frame whose message was opened last, and whose code
    /// is `code`. To be called for every frame, also without a payload.
    pub(crate) fn open_payload(
        &mut self,
        message_bytes: usize,
        payload: &mut [u8],
        code: &[u8; CODE_BYTES],
        tag: &[u8; CODE_BYTES],
    ) -> Result<(), Forged> {
        let Kind::Encrypted(encryption) = &mut self.kind else { return Ok(()) };
        let nonce = nonce(2 * (self.counter - 1) + 1);
        if !payload.is_empty() && !encryption.open(nonce, code, *tag, payload) {
            return Err(Forged);
        }
        encryption.count(message_bytes + payload.len());
        Ok(())
    }
}

fn hmac(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("invariant: HMAC takes keys of any length")
}

fn running_code(key: &Hmac<Sha256>, counter: u64, head: &[u8], message: &[u8]) -> Hmac<Sha256> {
    let mut code = key.clone();
    code.update(&counter.to_le_bytes());
    code.update(head);
    code.update(message);
    code
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Encryption {
    fn new(secret: &[u8; 32], bytes_max: u64) -> Encryption {
        let key = UnboundKey::new(&AES_256_GCM, secret).expect("invariant: a key of 32 bytes");
        let key = LessSafeKey::new(key);
        Encryption { secret: *secret, key, bytes_left: bytes_max, bytes_max, scratch: Vec::new() }
    }

    /// Leaves `message ‖ payload ‖ the payload's tag` in `scratch`; returns the message's tag.
    fn seal(&mut self, counter: u64, head: &[u8], message: &[u8], payload: &[u8]) -> [u8; 16] {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.reserve(message.len() + payload.len() + CODE_BYTES);
        scratch.extend_from_slice(message);
        scratch.extend_from_slice(payload);
        let (sealed_message, sealed_payload) = scratch.split_at_mut(message.len());
        let code = self.seal_part(nonce(2 * counter), head, sealed_message);
        if !payload.is_empty() {
            let tag = self.seal_part(nonce(2 * counter + 1), &code, sealed_payload);
            scratch.extend_from_slice(&tag);
        }
        self.scratch = scratch;
        self.count(message.len() + payload.len());
        code
    }

    fn seal_part(&self, nonce: Nonce, extra: &[u8], part: &mut [u8]) -> [u8; CODE_BYTES] {
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(extra), part);
        let tag = tag.expect("invariant: parts of a frame are far below the cipher's limit");
        tag.as_ref().try_into().expect("invariant: a tag has 16 bytes")
    }

    fn open(&self, nonce: Nonce, extra: &[u8], tag: [u8; CODE_BYTES], part: &mut [u8]) -> bool {
        let (aad, tag) = (Aad::from(extra), Tag::from(tag));
        self.key.open_in_place_separate_tag(nonce, aad, tag, part, 0..).is_ok()
    }

    /// Counts a frame, and goes on with the next key when this one has done enough.
    fn count(&mut self, bytes: usize) {
        // Frames cost blocks of the cipher even if they are empty.
        self.bytes_left = self.bytes_left.saturating_sub(bytes as u64 + 64);
        if self.bytes_left == 0 {
            let next = hmac(&self.secret).chain_update(b"strake next key").finalize();
            let scratch = std::mem::take(&mut self.scratch);
            *self = Encryption::new(&next.into_bytes().into(), self.bytes_max);
            self.scratch = scratch;
        }
    }
}
