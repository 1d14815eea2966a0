//! The kernel's counts of a TCP connection: `getsockopt(TCP_INFO)`.
//!
//! The kernel's structure grows at its end, and says by its length how much of it there is. The
//! places of its fields never change. The C library's declaration ends long before the fields that
//! count bytes, so the bytes are read at their places here.

#![allow(unsafe_code, reason = "getsockopt: the library for system calls has no TCP_INFO")]

use std::os::fd::{AsFd, AsRawFd};

/// Bytes asked for. The last field that is read ends at 208.
const INFO_BYTES: usize = 256;
/// Packets that were sent and that the other end has not acknowledged.
const UNACKNOWLEDGED: usize = 24;
/// Packets that were sent again.
const SENT_AGAIN: usize = 100;
/// Bytes received.
const RECEIVED: usize = 128;
/// Packets sent.
const PACKETS: usize = 136;
/// Bytes that wait to be sent.
const UNSENT: usize = 144;
/// Bytes sent, those too that were sent again.
const SENT: usize = 200;

/// Sums of a connection, or of several. They only rise, except those that say what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFigures {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Packets sent, those too that were sent again.
    pub packets: u64,
    /// Packets that the kernel sent again because the other end did not acknowledge them.
    pub sent_again: u64,
    /// Bytes that wait in the kernel to be sent.
    pub unsent: u64,
    /// Packets that were sent and are not acknowledged yet.
    pub unacknowledged: u64,
}

impl TcpFigures {
    /// Adds those of another connection.
    pub fn add(&mut self, other: &TcpFigures) {
        self.add_past(other);
        self.unsent += other.unsent;
        self.unacknowledged += other.unacknowledged;
    }

    /// Adds those of a connection that is over: nothing of it waits.
    pub fn add_past(&mut self, other: &TcpFigures) {
        self.sent += other.sent;
        self.received += other.received;
        self.packets += other.packets;
        self.sent_again += other.sent_again;
    }

    /// Reads the kernel's figures; `None` if the socket is no TCP connection.
    pub fn of(socket: impl AsFd) -> Option<TcpFigures> {
        let mut info = [0u8; INFO_BYTES];
        let mut length = INFO_BYTES as libc::socklen_t;
        // SAFETY: `info` has `length` bytes, which the kernel fills at most, and both live through
        // the call. The descriptor is open, because it is borrowed.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        // Kernels before 4.19 do not count bytes sent.
        (result == 0 && length as usize >= SENT + 8).then(|| TcpFigures::decode(&info))
    }

    fn decode(info: &[u8; INFO_BYTES]) -> TcpFigures {
        let word = |at: usize| {
            let bytes = info[at..at + 4].try_into().expect("invariant: four bytes");
            u64::from(u32::from_ne_bytes(bytes))
        };
        let long = |at: usize| {
            let bytes = info[at..at + 8].try_into().expect("invariant: eight bytes");
            u64::from_ne_bytes(bytes)
        };
        TcpFigures {
            sent: long(SENT),
            received: long(RECEIVED),
            packets: word(PACKETS),
            sent_again: word(SENT_AGAIN),
            unsent: word(UNSENT),
            unacknowledged: word(UNACKNOWLEDGED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{TcpListener, TcpStream, UnixStream};
    use std::io::{Read, Write};

    #[test]
    fn the_kernel_counts_what_goes_both_ways() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut one = TcpStream::connect(address).expect("listens");
        let (mut other, _) = listener.accept().expect("connects");
        one.write_all(&[7; 3000]).expect("sends");
        let mut bytes = [0; 3000];
        other.read_exact(&mut bytes).expect("receives");
        other.write_all(&[8; 500]).expect("sends");
        one.read_exact(&mut bytes[..500]).expect("receives");
        let figures = TcpFigures::of(&one).expect("a TCP connection");
        assert_eq!((figures.sent, figures.received), (3000, 500));
        assert!(figures.packets >= 2 && figures.unsent == 0, "{figures:?}");
        let (unix, _other) = UnixStream::pair().expect("a pair");
        assert_eq!(TcpFigures::of(&unix), None);
    }
}
