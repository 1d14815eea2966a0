//! The session: threads that each read a request from `/dev/fuse`, have it answered, and write
//! the reply. Every thread has descriptors of its own, so the kernel wakes one, not all; how many
//! read at a time is `readers.rs`.
//!
//! A request is one `read`, a reply one `writev`; the kernel hands out whole messages only. The
//! connection ends when the mount is gone: reads then fail with ENODEV. What the kernel is told
//! without having asked is `notify.rs`.

use crate::abi::{
    InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_OLDEST, MINOR_WITH_EPOCHS, Opcode, OutHeader,
    init_flag,
};
use crate::adapter::{Adapter, Answer};
use crate::awake::{self, Awake, StayAwake};
use crate::connection;
use crate::notify::Notifier;
use crate::readers::{Lasting, Length, Readers};
use crate::uring;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strake_client::Vfs;
use strake_client::invalidate::{Invalidate, this_thread_serves};
use strake_env::sync::Mutex;
use strake_env::thread::JoinHandle;
use strake_env::{AlignedBuffer, LentBuffer};
use strake_observe::{Observe, Operation};
use strake_proto::errno::errno;
use strake_proto::{Error, ErrorKind, Result};
use tracing::{debug, error, warn};

/// The largest read or write that travels in one message.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Room for what is read: twice the largest read, which is what a huge page holds.
const DATA_BYTES: usize = 2 * TRANSFER_BYTES_MAX;
/// Room for the headers before a write's bytes; the kernel insists on at least this.
const HEADERS_BYTES: usize = 4096;
/// Requests the kernel may have under way in the background (read-ahead, direct I/O).
const BACKGROUND_MAX: u16 = 64;
/// Looks for a request before a thread waits for one: some 30 µs, twice what a request takes that
/// needs no disk.
const LOOKS: u32 = 50;
/// A second reader on two processors takes requests from the one whose caches are warm, and time
/// from those who ask.
const PROCESSORS_PER_READER: usize = 2;
/// Replies up to this length are sent in one piece: all that tell of one file are shorter.
const SMALL_REPLY_BYTES: usize = 256;
/// Read-ahead of one sequential reader: four of the largest requests, so that while one of them is
/// copied by its reader the next ones are filled.
const READ_AHEAD_KIB: u32 = 4096;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What listings of mounts and `df` show as the device: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Where.
    pub path: PathBuf,
    /// Threads that serve requests; with `io_uring` for each processor.
    pub threads: usize,
    /// Use FUSE over io_uring if the kernel offers it.
    pub io_uring: bool,
    /// Keep processors from halting while requests come.
    pub stay_awake: StayAwake,
}

/// A mounted file system.
pub struct FuseMount {
    path: PathBuf,
    /// The device number of its files, which no other file system has while it is there.
    device: u64,
    threads: Mutex<Vec<JoinHandle<()>>>,
    notifier: Arc<Notifier>,
}

impl FuseMount {
    /// Mounts `vfs` and starts serving; when this returns, the mount answers.
    ///
    /// # Errors
    /// The host's, with what could not be done.
    pub fn mount(
        vfs: Arc<dyn Vfs>,
        observe: Arc<Observe>,
        options: &MountOptions,
    ) -> Result<FuseMount> {
        let connection = connection::mount(&options.name, &options.path)?;
        let started = start(vfs, observe, connection, options)
            .and_then(|started| Ok((started, std::fs::metadata(&options.path)?.dev())));
        let ((threads, notifier), device) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = connection::unmount(&options.path, true);
                return Err(error);
            }
        };
        connection::raise_read_ahead(device, READ_AHEAD_KIB);
        let (path, threads) = (options.path.clone(), Mutex::new(threads));
        Ok(FuseMount { path, device, threads, notifier })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still in the tree of mounts. Programs that had files open when it was taken
    /// out are served all the same.
    ///
    /// # Errors
    /// The host's.
    pub fn is_in_tree(&self) -> Result<bool> {
        Ok(connection::is_listed(&std::fs::read("/proc/self/mountinfo")?, self.device))
    }

    /// Unmounts; the session ends by itself then.
    ///
    /// # Errors
    /// `Busy` while programs use it, unless `force`.
    pub fn unmount(&self, force: bool) -> Result<()> {
        connection::unmount(&self.path, force)
    }

    /// Returns when the mount is gone, whoever took it away, and every request is answered.
    pub fn wait(&self) {
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                error!(target: "fuse", "a serving thread panicked");
            }
        }
        self.notifier.join();
    }
}

fn start(
    vfs: Arc<dyn Vfs>,
    observe: Arc<Observe>,
    connection: OwnedFd,
    options: &MountOptions,
) -> Result<(Vec<JoinHandle<()>>, Arc<Notifier>)> {
    let count = options.threads.max(1);
    // Made before the kernel is asked: it must not wait for rings that cannot be made.
    let mut entries = if options.io_uring { make_entries(count) } else { Vec::new() };
    let Agreed { flags: agreed, minor } = initialise(&connection, !entries.is_empty())?;
    if agreed & init_flag::OVER_IO_URING == 0 && !entries.is_empty() {
        warn!(
            target: "fuse",
            "this kernel offers no FUSE over io_uring \
             (/sys/module/fuse/parameters/enable_uring): requests come through /dev/fuse"
        );
        entries.clear();
    }
    let operations = (0..=u32::from(u8::MAX))
        .map(|number| Opcode::from_number(number).map(|op| observe.operations.operation(op.name())))
        .collect();
    let direct_maps = agreed & init_flag::DIRECT_IO_ALLOW_MMAP != 0;
    let telling = connection::duplicate(&connection)?;
    let tell = move |message: &[u8]| rustix::io::write(&telling, message).map(drop);
    let has_epochs = minor >= MINOR_WITH_EPOCHS;
    let notifier = Arc::new(Notifier::new(Box::new(tell), has_epochs, count, observe));
    vfs.attach_adapter(Arc::clone(&notifier) as Arc<dyn Invalidate>);
    let processors = strake_env::thread::available_parallelism().map_or(1, usize::from);
    let server = Arc::new(Server {
        adapter: Adapter::new(vfs, direct_maps, Arc::clone(&notifier)),
        operations,
        lasting: std::array::from_fn(|_| Lasting::default()),
        readers: Readers::new(processors / PROCESSORS_PER_READER),
        awake: Awake::default(),
        notifier: Arc::clone(&notifier),
    });
    let mut threads = Vec::new();
    // Of what does not come through rings there is little.
    let readers = if entries.is_empty() { count } else { 1 };
    for entry in entries {
        let (server, descriptor) = (Arc::clone(&server), connection::duplicate(&connection)?);
        let thread =
            strake_env::thread::Builder::new().name("fuse-ring".to_owned()).spawn(move || {
                this_thread_serves();
                entry.serve(&server, &descriptor);
            })?;
        threads.push(thread);
    }
    let channels: Result<Vec<Channel>> = (0..readers).map(|_| Channel::open(&connection)).collect();
    for (index, channel) in channels?.into_iter().enumerate() {
        let server = Arc::clone(&server);
        let thread =
            strake_env::thread::Builder::new().name(format!("fuse-{index}")).spawn(move || {
                this_thread_serves();
                serve(&server, &channel);
                server.end();
            })?;
        threads.push(thread);
    }
    if options.stay_awake.is_wanted() {
        threads.push(keep_awake(&server)?);
    }
    let watch = strake_env::thread::Builder::new()
        .name("fuse-watch".to_owned())
        .spawn(move || server.readers.watch())?;
    threads.push(watch);
    Ok((threads, notifier))
}

fn keep_awake(server: &Arc<Server>) -> Result<JoinHandle<()>> {
    let server = Arc::clone(server);
    let keeper =
        strake_env::thread::Builder::new().name("fuse-awake".to_owned()).spawn(move || {
            if let Err(error) = server.awake.keep(awake::hold) {
                warn!(
                    target: "fuse",
                    "processors halt between requests, which makes them slower: {error}"
                );
            }
        })?;
    Ok(keeper)
}

fn make_entries(each: usize) -> Vec<uring::Entry> {
    uring::entries(each).unwrap_or_else(|error| {
        warn!(target: "fuse", "no rings: {error}: requests come through /dev/fuse");
        Vec::new()
    })
}

/// A thread's descriptors of the connection. A reply goes to the one its request came from.
struct Channel {
    /// Reading from it waits for a request.
    waiting: OwnedFd,
    /// Reading from it does not.
    looking: OwnedFd,
}

impl Channel {
    fn open(connection: &OwnedFd) -> Result<Channel> {
        let waiting = connection::duplicate(connection)?;
        let looking = connection::duplicate(connection)?;
        rustix::io::ioctl_fionbio(&looking, true).map_err(std::io::Error::from)?;
        Ok(Channel { waiting, looking })
    }

    /// Reads one request and tells where it came from; `None` when the mount is gone.
    ///
    /// Looks a few times before it waits. Who waits must be woken by whoever asks, which on a
    /// processor that has gone to sleep takes longer than most answers do; and the next request
    /// follows the last answer closely. Not `sched_yield` between the looks: on a busy machine it
    /// gives away a whole turn, and the request that comes then waits for that long.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, &OwnedFd)>> {
        for _ in 0..LOOKS {
            match rustix::io::read(&self.looking, &mut *buffer) {
                Ok(length) => return Ok(Some((length, &self.looking))),
                Err(Errno::AGAIN) => {}
                // The other descriptor tells what is wrong.
                Err(_) => break,
            }
        }
        Ok(receive(&self.waiting, buffer)?.map(|length| (length, &self.waiting)))
    }
}

/// Numbers that operations may have.
const OPERATIONS: usize = 256;

/// What all serving threads use.
pub(crate) struct Server {
    adapter: Adapter,
    /// By the operation's number.
    operations: Vec<Option<Arc<Operation>>>,
    /// As well.
    lasting: [Lasting; OPERATIONS],
    readers: Readers,
    awake: Awake,
    notifier: Arc<Notifier>,
}

impl Server {
    /// The connection is gone.
    fn end(&self) {
        self.readers.end();
        self.awake.end();
        self.notifier.end();
    }

    /// What is known of the requests of an operation.
    fn lasting(&self, header: &InHeader) -> &Lasting {
        &self.lasting[header.opcode as usize % OPERATIONS]
    }

    /// Has one request answered; `data` is where reads put their bytes. An error is an errno.
    pub(crate) fn serve(
        &self,
        header: &InHeader,
        body: &[u8],
        data: &mut [u8],
    ) -> std::result::Result<Answer, i32> {
        let opcode =
            Opcode::from_number(header.opcode).ok_or_else(|| errno(ErrorKind::NoSystem))?;
        self.awake.note();
        let operation = self.operations[header.opcode as usize & 0xff].as_ref();
        let answer = self.lasting(header).note(|| {
            let start = operation.map(|operation| operation.begin());
            let answer = self.adapter.answer(header, opcode, body, data);
            let bytes = match &answer {
                Ok(Answer::Data(length)) => *length as u64,
                Ok(Answer::Written(size)) => u64::from(*size),
                _ => 0,
            };
            let took = match (operation, start) {
                (Some(operation), Some(start)) => operation.end(start, bytes, answer.is_ok()),
                _ => Duration::ZERO,
            };
            (answer, took)
        });
        answer.map_err(|error| {
            let (name, node) = (opcode.name(), header.nodeid);
            match is_worth_a_line(error.kind()) {
                true => error!(target: "fuse", "{name} of inode {node}: {error}"),
                false => debug!(target: "fuse", "{name} of inode {node}: {error}"),
            }
            errno(error.kind())
        })
    }
}

/// Reads one request; `None` when the mount is gone.
fn receive(connection: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    loop {
        match rustix::io::read(connection, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(Errno::NODEV) => return Ok(None),
            // ENOENT: the request was interrupted before it was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
}

/// Whether a request waits to be read.
fn is_waiting(connection: &OwnedFd) -> bool {
    let mut looked = [PollFd::new(connection, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut looked, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Writes one reply: `error` is 0 or an errno.
fn send(connection: &OwnedFd, unique: u64, error: i32, bytes: &[u8]) {
    let length = OutHeader::SIZE + bytes.len();
    let header = OutHeader {
        len: length as u32,
        error: error.checked_neg().expect("invariant: an errno is small"),
        unique,
    }
    .encode();
    let mut small = [0u8; SMALL_REPLY_BYTES];
    // The kernel pins every piece of a reply by itself, which costs more than copying a short one.
    let sent = if length <= small.len() {
        small[..header.len()].copy_from_slice(&header);
        small[header.len()..length].copy_from_slice(bytes);
        rustix::io::write(connection, &small[..length])
    } else {
        rustix::io::writev(connection, &[IoSlice::new(&header), IoSlice::new(bytes)])
    };
    match sent {
        // ENOENT: the caller was killed meanwhile. ENODEV: the mount is gone.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(error) => warn!(target: "fuse", "the kernel refuses a reply: {error}"),
    }
}

/// What both sides can do.
struct Agreed {
    flags: u64,
    minor: u32,
}

/// Answers INIT: agrees on the version and on what both sides can do.
fn initialise(connection: &OwnedFd, rings: bool) -> Result<Agreed> {
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
        // Kernels before 7.36 send a shorter one; missing fields read as zeros.
        let mut body = [0u8; InitIn::SIZE];
        let sent = &message[InHeader::SIZE..];
        let known = sent.len().min(body.len());
        body[..known].copy_from_slice(&sent[..known]);
        let init = InitIn::decode(&body).ok_or_else(malformed)?;
        if init.major > MAJOR {
            // The kernel asks again with the version we name.
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
        let answer = agree(&init, rings);
        send(connection, header.unique, 0, &answer.encode());
        let flags = u64::from(answer.flags) | (u64::from(answer.flags2) << 32);
        return Ok(Agreed { flags, minor: answer.minor });
    }
}

fn agree(init: &InitIn, rings: bool) -> InitOut {
    use init_flag as flag;
    // Not ATOMIC_O_TRUNC: with it the kernel sends the truncation before it asks whether the file
    // is a running program, which then dies of an open(O_RDONLY | O_TRUNC) that fails.
    let wanted = flag::ASYNC_READ
        | flag::EXPORT_SUPPORT
        | flag::BIG_WRITES
        | flag::DONT_MASK
        | flag::DO_READDIRPLUS
        | flag::READDIRPLUS_AUTO
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
        | flag::HAS_EXPIRE_ONLY
        | flag::DIRECT_IO_ALLOW_MMAP
        | if rings { flag::OVER_IO_URING } else { 0 };
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

fn serve(server: &Server, channel: &Channel) {
    let mut request = AlignedBuffer::zeroed(HEADERS_BYTES + TRANSFER_BYTES_MAX);
    let mut data = LentBuffer::new(DATA_BYTES);
    let mut last = Length::Short;
    loop {
        server.readers.enter(last);
        match channel.receive(&mut request) {
            Ok(Some((length, connection))) => {
                last = serve_one(server, connection, &request[..length], &mut data);
            }
            Ok(None) => return,
            Err(error) => {
                error!(target: "fuse", "the connection is lost: {error}");
                return;
            }
        }
    }
}

/// Whether a program that asks for this mostly waits for the answer before it asks for more: it
/// makes things durable one by one, or walks through a tree.
fn comes_alone(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Fsync | Opcode::ReadDir | Opcode::ReadDirPlus)
}

/// Answers a request that this thread has read; returns how long the next one like it may last.
fn serve_one(
    server: &Server,
    connection: &OwnedFd,
    message: &[u8],
    data: &mut LentBuffer,
) -> Length {
    let Some((header, body)) = split(message) else {
        server.readers.take(Length::Short);
        server.readers.answered(Length::Short, || false);
        error!(target: "fuse", "a request of {} bytes has no header", message.len());
        return Length::Short;
    };
    let lasting = server.lasting(&header);
    let alone = Opcode::from_number(header.opcode).is_some_and(comes_alone);
    let length = lasting.expected(alone);
    server.readers.take(length);
    // What is read may come from a disk that is given up, and is then read once more.
    let answer = match Opcode::from_number(header.opcode) {
        Some(Opcode::Read) => data.fill(|data| server.serve(&header, body, data)),
        _ => server.serve(&header, body, &mut []),
    };
    server.readers.answered(length, || is_waiting(connection));
    match answer {
        Ok(Answer::Silence) => {}
        Ok(Answer::Empty) => send(connection, header.unique, 0, &[]),
        Ok(Answer::Bytes(reply)) => send(connection, header.unique, 0, &reply),
        Ok(Answer::Data(length)) => send(connection, header.unique, 0, &data[..length]),
        Ok(Answer::Written(size)) => {
            let reply = crate::abi::WriteOut { size }.encode();
            send(connection, header.unique, 0, &reply);
        }
        Err(errno) => send(connection, header.unique, errno, &[]),
    }
    lasting.expected(alone)
}

/// A request's header and body; `None` if it is too short for one.
pub(crate) fn split(message: &[u8]) -> Option<(InHeader, &[u8])> {
    let header = InHeader::decode(message)?;
    // Extensions (none is asked for) stand after the body.
    let end = message.len().saturating_sub(usize::from(header.total_extlen) * 8);
    Some((header, message.get(InHeader::SIZE..end).unwrap_or(&[])))
}

/// Errors that say something about the system, not about the caller's request.
fn is_worth_a_line(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Io
            | ErrorKind::Corrupt
            | ErrorKind::Internal
            | ErrorKind::Unreachable
            | ErrorKind::TimedOut
            | ErrorKind::Fenced
    )
}
