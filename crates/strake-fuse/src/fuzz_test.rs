//! Malformed requests: whatever bytes come, the answer is an error or an answer, in bounded memory.
//! Begins with the requests in `corpus/requests`, one of each operation and those that found
//! something, and goes on with changed ones; `STRAKE_SIM_SCALE` times as many.

use crate::abi::{self, InHeader, Opcode};
use crate::adapter::{Adapter, Answer};
use crate::notify::Notifier;
use crate::session::{TRANSFER_BYTES_MAX, split};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use strake_client::Vfs;
use strake_client::mode::MountMode;
use strake_client::vfs::*;
use strake_env::rng::{test_scale, test_seeds};
use strake_env::sync::Mutex;
use strake_env::{RealClock, Rng};
use strake_observe::Observe;
use strake_proto::meta::{Cookie, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Generation, Ino, Result, StatFs, Timestamp};

/// Inputs of one seed.
const INPUTS: u64 = 5000;

/// A file system that agrees to everything and holds what it is told of to the interface's limits.
#[derive(Default)]
pub(crate) struct Agreeing {
    mode: Mutex<MountMode>,
    is_shared: bool,
    opened: Mutex<(u64, HashSet<Handle>)>,
    at_statfs: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl Agreeing {
    /// Has `work` done before each answer to `statfs`.
    pub(crate) fn when_asked_for_statfs(&self, work: impl Fn() + Send + Sync + 'static) {
        *self.at_statfs.lock() = Some(Box::new(work));
    }

    fn handle(&self) -> Handle {
        let mut opened = self.opened.lock();
        opened.0 += 1;
        let handle = Handle(opened.0);
        opened.1.insert(handle);
        handle
    }
}

fn attr(ino: Ino) -> Attr {
    let time = Timestamp { seconds: -1, nanos: 999_999_999 };
    Attr {
        ino,
        generation: Generation(u64::MAX),
        file_type: FileType::Regular,
        permissions: 0o7777,
        links: u32::MAX,
        uid: u32::MAX,
        gid: 0,
        rdev: u32::MAX,
        // Every other one is empty: how it is opened depends on that.
        size: ino.0 % 2,
        allocated: u64::MAX,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

/// Names are what the adapter found in the message: never with an end within.
fn entry(name: &[u8]) -> Result<Entry> {
    assert!(!name.contains(&0), "a name ends where it ends");
    match name.len() {
        256.. => Err(ErrorKind::NameTooLong.into()),
        length => Ok(Entry { attr: attr(Ino(length as u64)) }),
    }
}

impl Vfs for Agreeing {
    fn set_mode(&self, mode: MountMode) {
        *self.mode.lock() = mode;
    }
    fn mode(&self) -> MountMode {
        *self.mode.lock()
    }
    fn is_shared(&self) -> bool {
        self.is_shared
    }
    /// Nobody has locks of odd owners.
    fn test_lock(&self, _: Handle, want: &LockWant) -> Result<Option<LockHeld>> {
        assert!(want.range.from < want.range.to && want.range.to <= ByteRange::END);
        let held = LockHeld { range: want.range, mode: LockMode::Shared, pid: want.pid };
        Ok(want.owner.id.is_multiple_of(2).then_some(held))
    }
    fn set_lock(&self, handle: Handle, want: &LockWant) -> Result<()> {
        self.test_lock(handle, want).map(drop)
    }
    fn set_lock_later(&self, handle: Handle, want: &LockWant, _: u64, then: LockDone) {
        then(self.set_lock(handle, want));
    }
    fn statfs(&self) -> Result<StatFs> {
        if let Some(work) = &*self.at_statfs.lock() {
            work();
        }
        let (total, free) = (u64::MAX, u64::MAX);
        let (inodes_used, inodes_free) = (u64::MAX, u64::MAX);
        Ok(StatFs { total, free, available: 0, inodes_used, inodes_free, block_size: 0 })
    }
    fn lookup(&self, _: &Caller, _: Ino, name: &[u8]) -> Result<Entry> {
        entry(name)
    }
    fn remember(&self, _: Ino) {}
    fn forget(&self, _: Ino, _: u64) {}
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(attr(ino))
    }
    fn setattr(&self, _: &Caller, ino: Ino, _: Option<Handle>, change: &SetAttr) -> Result<Attr> {
        assert!(change.permissions.is_none_or(|bits| bits <= 0o7777));
        Ok(attr(ino))
    }
    fn access(&self, _: &Caller, _: Ino, _: u32) -> Result<()> {
        Ok(())
    }
    fn readlink(&self, _: Ino) -> Result<Vec<u8>> {
        Ok(vec![b'x'; 4095])
    }
    fn mknod(&self, _: &Caller, _: Ino, name: &[u8], _: MakeNode) -> Result<Entry> {
        entry(name)
    }
    fn mkdir(&self, _: &Caller, _: Ino, name: &[u8], _: u32) -> Result<Entry> {
        entry(name)
    }
    fn symlink(&self, _: &Caller, _: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        entry(target)?;
        entry(name)
    }
    fn link(&self, _: &Caller, _: Ino, _: Ino, name: &[u8]) -> Result<Entry> {
        entry(name)
    }
    fn unlink(&self, _: &Caller, _: Ino, name: &[u8]) -> Result<()> {
        entry(name).map(drop)
    }
    fn rmdir(&self, _: &Caller, _: Ino, name: &[u8]) -> Result<()> {
        entry(name).map(drop)
    }
    fn rename(
        &self,
        _: &Caller,
        a: (Ino, &[u8]),
        b: (Ino, &[u8]),
        _: RenameMode,
    ) -> Result<Renamed> {
        let moved = entry(a.1)?.attr.ino;
        entry(b.1).map(|_| Renamed { moved: [Some(moved), None] })
    }
    fn create(
        &self,
        _: &Caller,
        _: Ino,
        name: &[u8],
        _: u32,
        _: OpenFlags,
        _: bool,
    ) -> Result<(Entry, Opened)> {
        Ok((entry(name)?, Opened { handle: self.handle(), keep_cache: true, is_new: false }))
    }
    fn tmpfile(&self, _: &Caller, ino: Ino, _: u32, _: OpenFlags) -> Result<(Entry, Opened)> {
        let handle = self.handle();
        Ok((Entry { attr: attr(ino) }, Opened { handle, keep_cache: false, is_new: true }))
    }
    fn open(&self, _: &Caller, _: Ino, _: OpenFlags) -> Result<Opened> {
        Ok(Opened { handle: self.handle(), keep_cache: true, is_new: false })
    }
    fn read(&self, _: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        Ok(out.len().min((offset % 8192) as usize))
    }
    /// Of one byte it says that it is not durable.
    fn write(&self, _: Handle, _: u64, bytes: &[u8]) -> Result<usize> {
        if bytes.len() == 1 { Err(ErrorKind::Io.into()) } else { Ok(bytes.len()) }
    }
    fn write_mapped(&self, _: Handle, _: u64, bytes: &[u8]) -> Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&self, _: Handle) -> Result<()> {
        Ok(())
    }
    fn fsync(&self, _: Handle) -> Result<()> {
        Ok(())
    }
    fn release(&self, handle: Handle) {
        self.opened.lock().1.remove(&handle);
    }
    fn fallocate(&self, _: Handle, range: Range<u64>, _: FallocateMode) -> Result<()> {
        assert!(range.start <= range.end);
        Ok(())
    }
    fn seek(&self, _: Handle, offset: u64, _: SeekFor) -> Result<u64> {
        Ok(offset)
    }
    fn copy_range(&self, _: (Handle, u64), _: (Handle, u64), length: u64) -> Result<u64> {
        Ok(length)
    }
    /// A directory without an end.
    fn readdir(
        &self,
        _: Ino,
        mut cookie: Cookie,
        with_attrs: bool,
        take: &mut dyn FnMut(&DirItem) -> bool,
    ) -> Result<()> {
        loop {
            cookie = cookie.wrapping_add(1);
            let (ino, file_type) = (Ino(cookie), FileType::Regular);
            let name = vec![b'n'; 1 + (cookie % 255) as usize];
            let attr = with_attrs.then(|| attr(ino));
            if !take(&DirItem { cookie, name, ino, file_type, attr }) {
                return Ok(());
            }
        }
    }
    fn fsyncdir(&self, _: Ino) -> Result<()> {
        Ok(())
    }
    fn getxattr(&self, _: &Caller, _: Ino, name: &[u8]) -> Result<Vec<u8>> {
        entry(name)?;
        Ok(vec![7; 50])
    }
    fn listxattr(&self, _: &Caller, _: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(vec![b"user.x".to_vec(); 9])
    }
    fn setxattr(
        &self,
        _: &Caller,
        _: Ino,
        name: &[u8],
        _: &[u8],
        _: XattrMode,
        _: bool,
    ) -> Result<()> {
        entry(name).map(drop)
    }
    fn removexattr(&self, _: &Caller, _: Ino, name: &[u8]) -> Result<()> {
        entry(name).map(drop)
    }
    fn sync(&self) -> Result<u64> {
        Ok(0)
    }
}

/// With a kernel that drops whatever it is told.
fn adapter(direct_maps: bool) -> Adapter {
    notifying(direct_maps, |_| {})
}

/// With one serving thread, which therefore never waits for what `told` is called with.
fn notifying(direct_maps: bool, told: impl Fn(&[u8]) + Send + Sync + 'static) -> Adapter {
    let observe = Observe::new(RealClock::shared(), 1);
    let tell = Box::new(move |message: &[u8]| {
        told(message);
        Ok(())
    });
    let notifier = Arc::new(Notifier::new(tell, Box::new(|| false), true, 1, observe));
    Adapter::new(Arc::new(Agreeing::default()), direct_maps, notifier)
}

/// Of a mount beside others.
fn shared_adapter() -> Adapter {
    let observe = Observe::new(RealClock::shared(), 1);
    let notifier =
        Arc::new(Notifier::new(Box::new(|_| Ok(())), Box::new(|| false), true, 1, observe));
    let agreeing = Agreeing { is_shared: true, ..Agreeing::default() };
    Adapter::new(Arc::new(agreeing), true, notifier)
}

/// The requests of the corpus, with what they are.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let lines = include_str!("../corpus/requests").lines().filter(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, opcode, node, body] = words[..] else { panic!("not four words: {line}") };
        let body = body.trim_matches('-');
        let byte = |at: usize| u8::from_str_radix(&body[at..at + 2], 16).expect("hexadecimal");
        let body: Vec<u8> = (0..body.len()).step_by(2).map(byte).collect();
        let header = InHeader {
            len: (InHeader::SIZE + body.len()) as u32,
            opcode: opcode.parse().expect("a number"),
            nodeid: node.parse().expect("a number"),
            ..InHeader::default()
        };
        (name.to_owned(), [&header.encode()[..], &body].concat())
    };
    lines.map(read).collect()
}

/// Changes a few bytes: to anything, to what counts are when they are wrong, or how many there are.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.index(bytes.len());
        match rng.below(6) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.below(256) as u8),
            4 => bytes.extend((0..rng.below(300)).map(|_| b'a')),
            _ => {
                let at = at / 4 * 4;
                let word = [0, 1, u32::MAX, u32::MAX - 7, 1 << 31, 1 << 20][rng.index(6)];
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&u32::to_le_bytes(word)[..end - at]);
            }
        }
    }
}

/// Has a message answered as the session would; whether it was.
fn answer(adapter: &Adapter, message: &[u8], data: &mut [u8]) -> bool {
    let Some((header, body)) = split(message) else { return false };
    let Some(opcode) = Opcode::from_number(header.opcode) else { return false };
    if opcode == Opcode::SetLkW && adapter.is_shared() {
        let (tell, told) = strake_env::channel::channel();
        adapter.lock_later(&header, body, Box::new(move |outcome| drop(tell.send(outcome))));
        return told.recv().expect("it is called").is_ok();
    }
    let Ok(answer) = adapter.answer(&header, opcode, body, data) else { return false };
    match answer {
        Answer::Bytes(reply) => {
            assert!(reply.capacity() <= TRANSFER_BYTES_MAX, "{opcode:?}: a reply has a limit");
        }
        Answer::Data(length) => assert!(length <= data.len(), "{opcode:?}: more than there is"),
        Answer::Silence | Answer::Empty | Answer::Written(_) => {}
    }
    true
}

#[test]
fn the_corpus_has_every_operation_and_is_answered() {
    let adapter = adapter(true);
    let mut data = vec![0; TRANSFER_BYTES_MAX];
    let mut missing: Vec<u32> = (0..256).filter(|it| Opcode::from_number(*it).is_some()).collect();
    for (name, message) in corpus() {
        let header = InHeader::decode(&message).expect("a header");
        missing.retain(|number| *number != header.opcode);
        let is_wanted = !name.starts_with('!');
        let answered = answer(&adapter, &message, &mut data);
        assert_eq!(answered, is_wanted, "{name}");
    }
    assert!(missing.is_empty(), "no request of {missing:?}");
}

#[test]
fn attributes_that_somebody_may_take_in_late_are_dropped_after_a_change() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let adapter = notifying(true, move |message| {
        let what = abi::InvalInodeOut::decode(&message[abi::OutHeader::SIZE..]).expect("whole");
        telling.lock().push((what.ino, what.offset));
    });
    let ask = |pid, opcode, body: &[u8]| {
        let header = InHeader { nodeid: 7, pid, ..InHeader::default() };
        adapter.answer(&header, opcode, body, &mut []).expect("it agrees");
        std::mem::take(&mut *told.lock())
    };
    let make = [&abi::MkdirIn::default().encode()[..], b"new\0"].concat();
    let directory = (7, -1);
    assert_eq!(ask(1, Opcode::Mkdir, &make), [directory], "anybody may have seen it before");
    assert_eq!(ask(1, Opcode::GetAttr, &[]), []);
    assert_eq!(ask(1, Opcode::Mkdir, &make), [], "only this thread has seen it");
    ask(2, Opcode::GetAttr, &[]);
    assert_eq!(ask(1, Opcode::Unlink, b"old\0"), [directory], "another thread has seen it");
    let renamed =
        ask(1, Opcode::Rename, &[&abi::RenameIn { newdir: 7 }.encode()[..], b"a\0b\0"].concat());
    assert_eq!(renamed.len(), 1, "the file has another change time");
    ask(2, Opcode::GetAttr, &[]);
    assert_eq!(ask(1, Opcode::RemoveXattr, b"user.a\0"), [directory]);
}

#[test]
fn pages_that_were_filled_are_dropped_after_writes_past_them_also_after_those_that_fail() {
    let (told, notifications) = strake_env::channel::channel();
    let adapter = notifying(true, move |message| {
        let range = abi::InvalInodeOut::decode(&message[abi::OutHeader::SIZE..]);
        told.send(range.expect("of pages")).expect("heard");
    });
    let pages = |length| abi::InvalInodeOut { ino: 7, offset: 0, length };
    let ask = |opcode, body: &[u8]| {
        let header = InHeader { nodeid: 7, ..InHeader::default() };
        adapter.answer(&header, opcode, body, &mut [0; 100]).is_ok()
    };
    let write = |bytes: &[u8], write_flags| {
        let asked = abi::WriteIn { size: bytes.len() as u32, write_flags, ..Default::default() };
        ask(Opcode::Write, &[&asked.encode()[..], bytes].concat())
    };
    let read = |read_flags| {
        let asked = abi::ReadIn { size: 10, read_flags, ..Default::default() };
        ask(Opcode::Read, &asked.encode())
    };
    assert!(ask(Opcode::Open, &abi::OpenIn::default().encode()));
    assert!(read(abi::READ_LOCKOWNER) && write(b"before", abi::WRITE_LOCKOWNER));
    assert!(read(0) && write(b"through them", 0) && write(b"from them", abi::WRITE_CACHE));
    assert!(write(b"past them", abi::WRITE_LOCKOWNER));
    let first = notifications.recv().expect("told");
    assert_eq!(first, pages(9), "not before pages were filled, nor for what goes through them");
    assert!(!write(b"!", abi::WRITE_LOCKOWNER), "it fails");
    let second = notifications.recv().expect("told");
    assert_eq!(second, pages(1), "its byte may be there all the same");
    drop(adapter);
    assert!(notifications.recv().is_err(), "that was all");
}

#[test]
fn malformed_requests_are_errors() {
    let corpus = corpus();
    for seed in test_seeds(0, 4 * test_scale()) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let adapter = if seed % 4 == 3 { shared_adapter() } else { adapter(rng.one_in(2)) };
        let mut data = vec![0; 128 << 10];
        let mut answered = 0;
        for _ in 0..INPUTS {
            let mut message = corpus[rng.index(corpus.len())].1.clone();
            mutate(&mut rng, &mut message);
            answered += u64::from(answer(&adapter, &message, &mut data));
        }
        assert!(answered > INPUTS / 10, "only {answered} got past the first look");
    }
}

#[test]
fn locks_come_from_the_kernel_only_beside_other_mounts() {
    let (alone, shared) = (adapter(true), shared_adapter());
    let locks: Vec<Vec<u8>> = corpus()
        .into_iter()
        .filter(|(name, _)| name.contains("etlk"))
        .map(|(_, message)| message)
        .collect();
    assert_eq!(locks.len(), 3);
    for message in locks {
        assert!(!answer(&alone, &message, &mut []), "a lone mount leaves them to the kernel");
        assert!(answer(&shared, &message, &mut []));
        assert!(!answer(&shared, &message[..message.len() - 1], &mut []), "too short");
    }
    let open = abi::OpenIn { flags: abi::open_flag::RDWR, open_flags: 0 }.encode();
    let header = InHeader { nodeid: 7, ..InHeader::default() };
    for (adapter, noflush) in [(&alone, abi::fopen::NOFLUSH), (&shared, 0)] {
        let opened = adapter.answer(&header, Opcode::Open, &open, &mut []).expect("it agrees");
        let Answer::Bytes(bytes) = opened else { panic!("not bytes") };
        let out = abi::OpenOut::decode(&bytes).expect("whole");
        assert_eq!(out.open_flags & abi::fopen::NOFLUSH, noflush, "close(2) releases locks");
    }
}
