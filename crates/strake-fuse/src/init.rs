//! INIT, the first request of a mount: the kernel and we agree on the version and on what both
//! sides can do.

use crate::abi::{InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_OLDEST, Opcode, init_flag};
use crate::session::{BACKGROUND_MAX, HEADERS_BYTES, TRANSFER_BYTES_MAX, receive, send};
use rustix::fd::OwnedFd;
use strake_env::AlignedBuffer;
use strake_proto::errno::errno;
use strake_proto::{Error, ErrorKind, Result};

/// The features that this side offers the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    /// Requests over io_uring.
    pub(crate) rings: bool,
    /// Whether other mounts change the file system at the same time.
    pub(crate) is_shared: bool,
}

/// The outcome of INIT.
pub(crate) struct Agreed {
    pub(crate) flags: u64,
    pub(crate) minor: u32,
}

/// Answers INIT, and so agrees with the kernel on the version and on what both sides can do.
pub(crate) fn initialise(connection: &OwnedFd, offer: Offer) -> Result<Agreed> {
    let mut buffer = AlignedBuffer::zeroed(HEADERS_BYTES + TRANSFER_BYTES_MAX);
    let gone = || Error::new(ErrorKind::Io, "the mount was gone before it began");
    loop {
        let length = receive(connection, &mut buffer)?.ok_or_else(gone)?;
        let malformed = || Error::new(ErrorKind::Corrupt, "the kernel's first request is no INIT");
        let message = &buffer[..length];
        let header = InHeader::decode(message).ok_or_else(malformed)?;
        if Opcode::from_number(header.opcode) != Some(Opcode::Init) {
            return Err(malformed());
        }
        // Kernels before 7.36 send a shorter struct. Its missing fields read as zeros.
        let mut body = [0u8; InitIn::SIZE];
        let sent = &message[InHeader::SIZE..];
        let known = sent.len().min(body.len());
        body[..known].copy_from_slice(&sent[..known]);
        let init = InitIn::decode(&body).ok_or_else(malformed)?;
        if init.major > MAJOR {
            // The kernel asks again, with the version that we answer.
            let answer = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
            send(connection, header.unique, 0, &answer.encode());
            continue;
        }
        if init.major < MAJOR || init.minor < MINOR_OLDEST {
            send(connection, header.unique, errno(ErrorKind::NotSupported), &[]);
            return Err(Error::new(
                ErrorKind::NotSupported,
                format!(
                    "this kernel speaks FUSE {}.{}; {MAJOR}.{MINOR_OLDEST} (Linux 5.17) is needed",
                    init.major, init.minor
                ),
            ));
        }
        let answer = agree(&init, offer);
        send(connection, header.unique, 0, &answer.encode());
        let flags = u64::from(answer.flags) | (u64::from(answer.flags2) << 32);
        return Ok(Agreed { flags, minor: answer.minor });
    }
}

fn agree(init: &InitIn, offer: Offer) -> InitOut {
    use init_flag as flag;
    // ATOMIC_O_TRUNC is left out. With it the kernel sends the truncation before it checks whether
    // the file is a running program. So an open(O_RDONLY | O_TRUNC) that fails would kill it.
    let wanted = flag::ASYNC_READ
        | flag::EXPORT_SUPPORT
        | flag::BIG_WRITES
        | flag::DONT_MASK
        | if offer.is_shared { 0 } else { flag::DO_READDIRPLUS | flag::READDIRPLUS_AUTO }
        | flag::ASYNC_DIO
        | flag::PARALLEL_DIROPS
        | flag::POSIX_ACL
        | flag::ABORT_ERROR
        | flag::MAX_PAGES
        | flag::CACHE_SYMLINKS
        | flag::EXPLICIT_INVAL_DATA
        | flag::HANDLE_KILLPRIV_V2
        | flag::SETXATTR_EXT
        | flag::INIT_EXT
        // Without these the kernel keeps the locks of programs by itself.
        | if offer.is_shared { flag::POSIX_LOCKS | flag::FLOCK_LOCKS } else { 0 }
        | flag::HAS_EXPIRE_ONLY
        | flag::DIRECT_IO_ALLOW_MMAP
        | if offer.rings { flag::OVER_IO_URING } else { 0 };
    let offered = u64::from(init.flags) | (u64::from(init.flags2) << 32);
    let agreed = wanted & offered;
    InitOut {
        major: MAJOR,
        minor: MINOR.min(init.minor),
        max_readahead: init.max_readahead,
        flags: (agreed & u64::from(u32::MAX)) as u32,
        flags2: (agreed >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: TRANSFER_BYTES_MAX as u32,
        time_granularity: 1,
        max_pages: (TRANSFER_BYTES_MAX / 4096) as u16,
        map_alignment: 0,
    }
}
