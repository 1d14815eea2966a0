//! The session of a mount. Each of its threads reads a request from `/dev/fuse`, has it answered,
//! and writes the reply. Every thread has descriptors of its own, so the kernel wakes one thread
//! and not all. `readers.rs` decides how many threads read at a time.
//!
//! A request is one `read` and a reply is one `writev`, because the kernel hands out whole messages
//! only. The connection ends when the mount is gone; then reads fail with ENODEV. `notify.rs` tells
//! the kernel what it has not asked for.

use crate::abi::{InHeader, MINOR_WITH_EPOCHS, Opcode, OutHeader, WriteIn, init_flag, open_flag};
use crate::adapter::{Adapter, Answer};
use crate::awake::{self, Awake, StayAwake};
use crate::connection;
use crate::failures::Failures;
use crate::init::{Agreed, Offer, initialise};
use crate::mode::ModeWatch;
use crate::mountinfo;
use crate::notify::Notifier;
use crate::options::KernelOptions;
use crate::overdue::{self, Answering, Overdue, Slot};
use crate::readers::{Lasting, Length, Readers};
use crate::uring;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strake_client::Vfs;
use strake_client::invalidate::{Invalidate, this_thread_serves};
use strake_env::answering::{self, Waits};
use strake_env::cause::{Cause, CauseGuard};
use strake_env::sync::Mutex;
use strake_env::thread::JoinHandle;
use strake_env::{AlignedBuffer, Clock, LentBuffer, RealClock};
use strake_observe::{IoDirection, Observe, Operation, Request, RequestKind};
use strake_proto::errno::errno;
use strake_proto::{Error, ErrorKind, Result};
use tracing::{debug, error, warn};

/// The largest read or write that travels in one message.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Room for the bytes of a read. It is twice the largest read, which is the size of a huge page.
const DATA_BYTES: usize = 2 * TRANSFER_BYTES_MAX;
/// Room for the headers before a write's bytes. The kernel demands at least this much.
pub(crate) const HEADERS_BYTES: usize = 4096;
/// How many requests the kernel may have under way in the background (read-ahead, direct I/O).
pub(crate) const BACKGROUND_MAX: u16 = 64;
/// How often a thread looks for a request before it waits for one. The looks take some 30 µs, twice
/// as long as a request that needs no disk.
const LOOKS: u32 = 50;
/// One thread reads for this many processors. A second reader on two processors would take requests
/// from the reader whose caches are warm, and time from the programs that ask.
const PROCESSORS_PER_READER: usize = 2;
/// Replies up to this length are copied and sent in one piece. Replies about one file are shorter.
const SMALL_REPLY_BYTES: usize = 256;
/// The kernel's read-ahead for one sequential reader. It is four of the largest requests, so that
/// the next ones are filled while the reader copies one of them.
const READ_AHEAD_KIB: u32 = 4096;

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The device that listings of mounts and `df` show. It has letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The mount point.
    pub path: PathBuf,
    /// How many threads serve requests. With `io_uring` it is the number for each processor.
    pub threads: usize,
    /// Use FUSE over io_uring if the kernel offers it.
    pub io_uring: bool,
    /// Keep processors from halting while requests come.
    pub stay_awake: StayAwake,
    /// The options of mount(8).
    pub kernel: KernelOptions,
}

/// Serving threads, of which there may be more and more.
type Grown = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// The most serving threads that there are beside other mounts.
const READERS_MAX: usize = 1024;

/// A mounted file system.
pub struct FuseMount {
    path: PathBuf,
    mode: Arc<ModeWatch>,
    threads: Grown,
    notifier: Arc<Notifier>,
    has_rings: bool,
    server: Arc<Server>,
    mode_thread: Mutex<Option<JoinHandle<()>>>,
}

impl FuseMount {
    /// Mounts `vfs` and starts serving. When this returns, the mount answers.
    ///
    /// # Errors
    /// The host's errors; the message says what could not be done.
    pub fn mount(
        vfs: Arc<dyn Vfs>,
        observe: Arc<Observe>,
        options: &MountOptions,
    ) -> Result<FuseMount> {
        // The kernel lists mounts by their real paths. This one can be found now, because nothing
        // is mounted there yet.
        let path = options.path.canonicalize().map_err(|error| {
            Error::from(error).context(format!("cannot mount at {}", options.path.display()))
        })?;
        let connection = connection::mount(&options.name, &path, &options.kernel)?;
        let started = FuseMount::begin(vfs, observe, connection, options, path.clone());
        started.inspect_err(|_| {
            let _ = connection::unmount(&path, true);
        })
    }

    fn begin(
        vfs: Arc<dyn Vfs>,
        observe: Arc<Observe>,
        connection: OwnedFd,
        options: &MountOptions,
        path: PathBuf,
    ) -> Result<FuseMount> {
        let unlisted = || Error::new(ErrorKind::Io, "/proc does not list the mount");
        let place = mountinfo::at(&path)?.ok_or_else(unlisted)?;
        let device = place.device.clone();
        let mode = Arc::new(ModeWatch::new(Arc::clone(&vfs), place, &connection)?);
        mode.look();
        let started = start(vfs, observe, connection, options, Arc::clone(&mode))?;
        let (threads, server, has_rings) = started;
        // The answer to INIT sets the read-ahead back to the kernel's 128 KiB, so it comes first.
        connection::raise_read_ahead(&device, READ_AHEAD_KIB);
        let (watch, notifier) = (Arc::clone(&mode), Arc::clone(&server.notifier));
        let name = "fuse-mode".to_owned();
        let telling = Arc::clone(&server);
        let mode_thread = strake_env::thread::Builder::new().name(name).spawn(move || {
            let tell = || {
                let now = RealClock.monotonic();
                telling.overdue.tell(now, &telling.observe.waiters);
                telling.failures.tell(now);
                if telling.adapter.is_shared() {
                    telling.notifier.look_below();
                }
            };
            if let Err(error) = watch.watch(&tell) {
                warn!(target: "fuse", "remounts and slow requests are not noticed: {error}");
            }
        })?;
        let mode_thread = Mutex::new(Some(mode_thread));
        Ok(FuseMount { path, mode, threads, notifier, has_rings, server, mode_thread })
    }

    /// Whether requests come through io_uring.
    pub fn has_rings(&self) -> bool {
        self.has_rings
    }

    /// The requests that are answered now, except waits for locks of programs.
    pub fn answering(&self) -> Vec<Answering> {
        self.server.overdue.answering()
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file system is mounted: at [`FuseMount::path`], and wherever bind mounts have it.
    /// Empty after it was taken out of the tree of mounts. Programs that had files open are still
    /// served then.
    ///
    /// # Errors
    /// The host's.
    pub fn places(&self) -> Result<Vec<PathBuf>> {
        Ok(self.mode.places()?.into_iter().map(|place| place.path).collect())
    }

    /// Unmounts wherever it is mounted. The session ends by itself afterwards.
    ///
    /// # Errors
    /// `Busy` while programs use the mount, unless `force`. The mounts that were made after the one
    /// in use are gone then.
    pub fn unmount(&self, force: bool) -> Result<()> {
        self.places()?.iter().rev().try_for_each(|path| connection::unmount(path, force))
    }

    /// Waits until the mount is gone, no matter how, and every request is answered.
    pub fn wait(&self) {
        loop {
            let threads = std::mem::take(&mut *self.threads.lock());
            if threads.is_empty() {
                break;
            }
            for thread in threads {
                if thread.join().is_err() {
                    error!(target: "fuse", "a serving thread panicked");
                }
            }
        }
        self.notifier.join();
        self.mode.end();
        if let Some(thread) = self.mode_thread.lock().take()
            && thread.join().is_err()
        {
            error!(target: "fuse", "the thread of the mount's options panicked");
        }
        self.server.failures.tell(Duration::MAX);
    }
}

fn start(
    vfs: Arc<dyn Vfs>,
    observe: Arc<Observe>,
    connection: OwnedFd,
    options: &MountOptions,
    mode: Arc<ModeWatch>,
) -> Result<(Grown, Arc<Server>, bool)> {
    let count = options.threads.max(1);
    // The rings are made before INIT is answered. Once the answer offers rings, the kernel waits
    // for them.
    let is_shared = vfs.is_shared();
    let mut entries = if options.io_uring && !is_shared { make_entries(count) } else { Vec::new() };
    let offer = Offer { rings: !entries.is_empty(), is_shared };
    let Agreed { flags: agreed, minor } = initialise(&connection, offer)?;
    if agreed & init_flag::OVER_IO_URING == 0 && !entries.is_empty() {
        warn!(
            target: "fuse",
            "this kernel offers no FUSE over io_uring \
             (/sys/module/fuse/parameters/enable_uring): requests come through /dev/fuse"
        );
        entries.clear();
    }
    let direct_maps = agreed & init_flag::DIRECT_IO_ALLOW_MMAP != 0;
    let telling = connection::duplicate(&connection)?;
    let tell = move |message: &[u8]| rustix::io::write(&telling, message).map(drop);
    let has_epochs = minor >= MINOR_WITH_EPOCHS;
    let watch = Arc::clone(&mode);
    let is_covered = Box::new(move || watch.is_covered());
    let notifier =
        Notifier::new(Box::new(tell), is_covered, has_epochs, count, Arc::clone(&observe));
    let notifier = Arc::new(notifier);
    vfs.attach_adapter(Arc::clone(&notifier) as Arc<dyn Invalidate>);
    let adapter = Adapter::new(vfs, direct_maps, Arc::clone(&notifier));
    let server = Arc::new(Server::new(adapter, notifier, mode, &observe));
    let mut threads = Vec::new();
    // With rings only few requests come through `/dev/fuse`.
    let has_rings = !entries.is_empty();
    let readers = if has_rings { 1 } else { count };
    for entry in entries {
        let (server, descriptor) = (Arc::clone(&server), connection::duplicate(&connection)?);
        let thread =
            strake_env::thread::Builder::new().name("fuse-ring".to_owned()).spawn(move || {
                this_thread_serves();
                entry.serve(&server, &descriptor);
            })?;
        threads.push(thread);
    }
    for number in 0..readers {
        threads.push(start_reader(&server, &connection, number)?);
    }
    if options.stay_awake.is_wanted() {
        threads.push(keep_awake(&server)?);
    }
    let grown = Grown::default();
    threads.push(start_watch(&server, connection, readers, &grown)?);
    grown.lock().append(&mut threads);
    Ok((grown, server, has_rings))
}

/// Starts a serving thread.
fn start_reader(
    server: &Arc<Server>,
    connection: &OwnedFd,
    number: usize,
) -> Result<JoinHandle<()>> {
    let (server, channel) = (Arc::clone(server), Channel::open(connection)?);
    let name = format!("fuse-{number}");
    Ok(strake_env::thread::Builder::new().name(name).spawn(move || {
        this_thread_serves();
        serve(&server, &channel);
        server.end();
    })?)
}

/// Starts the watch. Beside other mounts requests wait for tokens, and what they wait for may need
/// other requests answered: so the watch starts more threads while all are held up.
fn start_watch(
    server: &Arc<Server>,
    connection: OwnedFd,
    readers: usize,
    grown: &Grown,
) -> Result<JoinHandle<()>> {
    let (server, grown) = (Arc::clone(server), Arc::clone(grown));
    let may_grow = server.adapter.is_shared();
    let mut number = readers;
    let mut grow = move |server: &Arc<Server>| {
        if !may_grow || number >= READERS_MAX {
            return;
        }
        match start_reader(server, &connection, number) {
            Ok(thread) => {
                number += 1;
                grown.lock().push(thread);
            }
            Err(error) => warn!(target: "fuse", "requests wait for a thread: {error}"),
        }
    };
    Ok(strake_env::thread::Builder::new()
        .name("fuse-watch".to_owned())
        .spawn(move || server.readers.watch(&mut || grow(&server)))?)
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

/// A thread's descriptors of the connection. A reply goes to the descriptor from which its request
/// came.
struct Channel {
    /// Reading from this one waits for a request.
    waiting: Arc<OwnedFd>,
    /// Reading from this one does not wait.
    looking: Arc<OwnedFd>,
}

impl Channel {
    fn open(connection: &OwnedFd) -> Result<Channel> {
        let waiting = connection::duplicate(connection)?;
        let looking = connection::duplicate(connection)?;
        rustix::io::ioctl_fionbio(&looking, true).map_err(std::io::Error::from)?;
        Ok(Channel { waiting: Arc::new(waiting), looking: Arc::new(looking) })
    }

    /// Reads one request and returns its length and its descriptor. `None` if the mount is gone.
    ///
    /// It looks a few times before it waits, because the next request follows the last answer
    /// closely. A thread that waits must be woken, and if its processor sleeps, that takes longer
    /// than most answers do. There is no `sched_yield` between the looks: on a busy machine it
    /// gives away a whole turn, and a request that comes meanwhile waits that long.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, &Arc<OwnedFd>)>> {
        for _ in 0..LOOKS {
            match rustix::io::read(&*self.looking, &mut *buffer) {
                Ok(length) => return Ok(Some((length, &self.looking))),
                Err(Errno::AGAIN) => {}
                // Reading from the other descriptor reports the error.
                Err(_) => break,
            }
        }
        Ok(receive(&self.waiting, buffer)?.map(|length| (length, &self.waiting)))
    }
}

/// The numbers of operations are below this.
const OPERATIONS: usize = 256;

/// The state that all serving threads share.
pub(crate) struct Server {
    adapter: Adapter,
    /// The counters of each operation, by its number.
    operations: Vec<Option<Arc<Operation>>>,
    /// For each operation, by its number: whether its requests lasted lately.
    lasting: [Lasting; OPERATIONS],
    readers: Readers,
    awake: Awake,
    notifier: Arc<Notifier>,
    mode: Arc<ModeWatch>,
    overdue: Overdue,
    failures: Arc<Failures>,
    observe: Arc<Observe>,
}

impl Server {
    fn new(
        adapter: Adapter,
        notifier: Arc<Notifier>,
        mode: Arc<ModeWatch>,
        observe: &Arc<Observe>,
    ) -> Server {
        let counters = |op: Opcode| observe.operations.operation(op.name());
        let numbers = 0..OPERATIONS as u32;
        let processors = strake_env::thread::available_parallelism().map_or(1, usize::from);
        Server {
            adapter,
            operations: numbers.map(|number| Opcode::from_number(number).map(counters)).collect(),
            lasting: std::array::from_fn(|_| Lasting::default()),
            readers: Readers::new(processors / PROCESSORS_PER_READER),
            awake: Awake::default(),
            notifier,
            mode,
            overdue: Overdue::default(),
            failures: Arc::default(),
            observe: Arc::clone(observe),
        }
    }

    /// Counts a read or a write by its size and time, if somebody wants that.
    fn count(&self, opcode: Opcode, bytes: u64, took: Duration) {
        match opcode {
            Opcode::Read => self.observe.histograms.record(IoDirection::Read, bytes, took),
            Opcode::Write => self.observe.histograms.record(IoDirection::Write, bytes, took),
            _ => {}
        }
    }

    /// Adds a request to what its process and file have asked for. `waits` is what the calling
    /// thread waited for meanwhile.
    fn note(
        &self,
        (opcode, header, body): (Opcode, &InHeader, &[u8]),
        (bytes, took): (u64, Duration),
        answer: &Result<Answer>,
        waits: &Waits,
    ) {
        let write = match opcode {
            Opcode::Write => WriteIn::decode(body),
            // These have no answer, so nobody waits for it.
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt => return,
            _ => None,
        };
        let kind = match opcode {
            Opcode::Read => RequestKind::Read,
            Opcode::Write if write.is_some_and(|it| it.flags & open_flag::DSYNC != 0) => {
                RequestKind::Sync
            }
            Opcode::Write => RequestKind::Write,
            Opcode::Fsync | Opcode::FsyncDir | Opcode::SyncFs => RequestKind::Sync,
            _ => RequestKind::Names,
        };
        self.observe.requests.note(&Request {
            process: header.pid,
            inode: header.nodeid,
            kind,
            offset: write.map_or(0, |it| it.offset),
            bytes,
            took,
            is_refused: matches!(answer, Err(error) if error.kind() == ErrorKind::NoSpace),
            waits,
        });
    }

    /// The calling thread works for this request from now on, if a trace runs.
    fn answer_for(&self, header: &InHeader) -> Option<CauseGuard> {
        let InHeader { unique: request, nodeid: inode, pid: process, .. } = *header;
        self.observe.trace.answer(Cause { request, inode, process })
    }

    /// A place where a new serving thread says which request it answers.
    pub(crate) fn slot(&self) -> Arc<Slot> {
        self.overdue.slot()
    }

    /// Ends all threads that wait, because the connection is gone.
    fn end(&self) {
        self.readers.end();
        self.awake.end();
        self.notifier.end();
    }

    /// Whether requests of this operation lasted lately.
    fn lasting(&self, header: &InHeader) -> &Lasting {
        &self.lasting[header.opcode as usize % OPERATIONS]
    }

    /// Has one request answered, and counts and logs it. Reads put their bytes into `data`. An
    /// error is an errno. `slot` is the calling thread's.
    pub(crate) fn serve(
        &self,
        slot: &Slot,
        header: &InHeader,
        body: &[u8],
        data: &mut [u8],
    ) -> std::result::Result<Answer, i32> {
        let opcode =
            Opcode::from_number(header.opcode).ok_or_else(|| errno(ErrorKind::NoSystem))?;
        self.awake.note();
        let operation = self.operations[header.opcode as usize & 0xff].as_ref();
        let _cause = self.answer_for(header);
        let answer = self.lasting(header).note(|| {
            let start = operation.map(|operation| operation.begin());
            let waiting = answering::Answer::begin();
            let answer = slot.hold(header, || {
                let answer = self.adapter.answer(header, opcode, body, data);
                // The kernel has let the change through, so the mount may have become writable.
                match answer {
                    Err(error) if error.kind() == ErrorKind::ReadOnly && self.mode.look() => {
                        self.adapter.answer(header, opcode, body, data)
                    }
                    answer => answer,
                }
            });
            let bytes = match &answer {
                Ok(Answer::Data(length)) => *length as u64,
                Ok(Answer::Written(size)) => u64::from(*size),
                _ => 0,
            };
            let took = match (operation, start) {
                (Some(operation), Some(start)) => operation.end(start, bytes, answer.is_ok()),
                _ => Duration::ZERO,
            };
            self.count(opcode, bytes, took);
            let spent = (bytes, took);
            waiting.end(|waits| self.note((opcode, header, body), spent, &answer, waits));
            overdue::ended(opcode, header, took);
            (answer, took)
        });
        answer.map_err(|error| logged(&self.failures, opcode, header, &error))
    }

    /// Has a request for a lock answered, at once or later; the reply goes to `connection`.
    fn serve_later(&self, header: &InHeader, body: &[u8], connection: &Arc<OwnedFd>) {
        let operation = self.operations[header.opcode as usize & 0xff].clone();
        let _cause = self.answer_for(header);
        let start = operation.as_ref().map(|operation| operation.begin());
        let (request, connection) = (*header, Arc::clone(connection));
        let failures = Arc::clone(&self.failures);
        let then = move |outcome: Result<()>| {
            if let (Some(operation), Some(start)) = (operation, start) {
                operation.end(start, 0, outcome.is_ok());
            }
            let failed = |error| logged(&failures, Opcode::SetLkW, &request, &error);
            let errno = outcome.err().map_or(0, failed);
            send(&connection, request.unique, errno, &[]);
        };
        self.adapter.lock_later(header, body, Box::new(then));
    }
}

/// Logs why a request failed, and returns the errno.
fn logged(failures: &Failures, opcode: Opcode, header: &InHeader, error: &Error) -> i32 {
    let (name, node, kind) = (opcode.name(), header.nodeid, error.kind());
    match is_worth_a_line(kind) && failures.has_line(name, kind, RealClock.monotonic()) {
        true => error!(target: "fuse", "{name} of inode {node}: {error}"),
        false => debug!(target: "fuse", "{name} of inode {node}: {error}"),
    }
    errno(kind)
}

/// Reads one request and returns its length. `None` if the mount is gone.
pub(crate) fn receive(connection: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>> {
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

/// True if a request waits to be read.
fn is_waiting(connection: &OwnedFd) -> bool {
    let mut looked = [PollFd::new(connection, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut looked, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Writes one reply; `error` is 0 or an errno.
pub(crate) fn send(connection: &OwnedFd, unique: u64, error: i32, bytes: &[u8]) {
    let length = OutHeader::SIZE + bytes.len();
    let header = OutHeader {
        len: length as u32,
        error: error.checked_neg().expect("invariant: an errno is small"),
        unique,
    }
    .encode();
    let mut small = [0u8; SMALL_REPLY_BYTES];
    // The kernel pins each piece of a reply. For a short reply that costs more than to copy it into
    // one piece.
    let sent = if length <= small.len() {
        small[..header.len()].copy_from_slice(&header);
        small[header.len()..length].copy_from_slice(bytes);
        rustix::io::write(connection, &small[..length])
    } else {
        rustix::io::writev(connection, &[IoSlice::new(&header), IoSlice::new(bytes)])
    };
    match sent {
        // ENOENT: the calling program was killed meanwhile. ENODEV: the mount is gone.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(error) => warn!(target: "fuse", "the kernel refuses a reply: {error}"),
    }
}

fn serve(server: &Server, channel: &Channel) {
    let mut request = AlignedBuffer::zeroed(HEADERS_BYTES + TRANSFER_BYTES_MAX);
    let mut data = LentBuffer::new(DATA_BYTES);
    let slot = server.slot();
    let mut last = Length::Short;
    loop {
        server.readers.enter(last);
        match channel.receive(&mut request) {
            Ok(Some((length, connection))) => {
                last = serve_one(server, &slot, connection, &request[..length], &mut data);
            }
            Ok(None) => return,
            Err(error) => {
                error!(target: "fuse", "the connection is lost: {error}");
                return;
            }
        }
    }
}

/// True if a program that sends this request usually waits for the answer before it asks for more.
/// Such a program makes files durable one by one, or walks through a tree.
fn comes_alone(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Fsync | Opcode::ReadDir | Opcode::ReadDirPlus)
}

/// Answers a request that this thread has read. Returns how long the next one of its kind may last.
fn serve_one(
    server: &Server,
    slot: &Slot,
    connection: &Arc<OwnedFd>,
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
    if Opcode::from_number(header.opcode) == Some(Opcode::SetLkW) {
        server.serve_later(&header, body, connection);
        server.readers.answered(length, || is_waiting(connection));
        return lasting.expected(alone);
    }
    // A disk may be given up during a read and still write into the buffer. `fill` then reads again
    // into another one.
    let answer = match Opcode::from_number(header.opcode) {
        Some(Opcode::Read) => data.fill(|data| server.serve(slot, &header, body, data)),
        _ => server.serve(slot, &header, body, &mut []),
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

/// A request's header and body. `None` if the message is too short for a header.
pub(crate) fn split(message: &[u8]) -> Option<(InHeader, &[u8])> {
    let header = InHeader::decode(message)?;
    // Extensions stand after the body. We ask for none.
    let end = message.len().saturating_sub(usize::from(header.total_extlen) * 8);
    Some((header, message.get(InHeader::SIZE..end).unwrap_or(&[])))
}

/// True for errors that say something about the system, and not about the program's request.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz_test::Agreeing;

    #[test]
    fn a_request_is_overdue_while_its_answer_is_not_there() {
        let observe = Observe::new(RealClock::shared(), 1);
        let telling = Box::new(|_: &[u8]| Ok(()));
        let notifier =
            Arc::new(Notifier::new(telling, Box::new(|| false), true, 1, Arc::clone(&observe)));
        let vfs = Arc::new(Agreeing::default());
        let mode = ModeWatch::of_proc(Arc::clone(&vfs) as Arc<dyn Vfs>);
        let adapter = Adapter::new(Arc::clone(&vfs) as Arc<dyn Vfs>, false, Arc::clone(&notifier));
        let server = Arc::new(Server::new(adapter, notifier, Arc::new(mode), &observe));
        let slot = server.slot();
        let found = Arc::new(Mutex::new(Vec::new()));
        let (looking, looks) = (Arc::clone(&server), Arc::clone(&found));
        vfs.when_asked_for_statfs(move || {
            for seconds in [100, 110, 120] {
                looks.lock().extend(looking.overdue.look(Duration::from_secs(seconds)));
            }
        });
        let header = InHeader { opcode: 17, nodeid: 5, ..InHeader::default() };
        server.serve(&slot, &header, &[], &mut []).expect("it agrees");
        assert!(server.overdue.look(Duration::from_secs(130)).is_empty(), "it is answered");
        let (thread, age) = (strake_env::thread::number(), Duration::from_secs(10));
        let late = overdue::Late { thread, name: "fuse_statfs", inode: 5, age };
        assert_eq!(*found.lock(), [late]);
    }
}
