//! Two processes on one file of any mount: `mount_probe PROBE FILE`. Exit code 0 if what POSIX
//! promises holds, else 1 with a sentence. The suites run it on a real mount; it is here because
//! mapping memory needs `unsafe`.
//!
//! The parent starts itself as the peer; both take turns over the peer's standard input and output,
//! one byte a turn, so that nothing depends on time.
#![allow(unsafe_code)]

#[path = "shared/mapping.rs"]
mod mapping;

use mapping::Mapping;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const MAP_BYTES: usize = 3 << 20;
const ROUNDS: u32 = 200;
const PAGE: usize = 4096;
const RACE_BYTES: usize = 4096 * PAGE;
const RACES: u8 = 30;
/// Within a page: where and how much the one writes, and where the other stores.
const WRITTEN_AT: usize = 1000;
const WRITTEN: usize = 8;
const STORED_AT: usize = 3000;
const APPENDERS: usize = 4;
const RECORDS: usize = 500;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["mmap", file] => mapped(Path::new(file), false),
        ["mmap-grow", file] => mapped(Path::new(file), true),
        ["mmap-peer", file] => mapped_peer(Path::new(file)),
        ["mmap-write", file] => written_beside(Path::new(file)),
        ["mmap-write-peer", file] => written_beside_peer(Path::new(file)),
        ["handle", file] => found_by_handle(Path::new(file)),
        ["fcntl" | "flock", file] => lock_passes_on(words[0], Path::new(file)),
        ["fcntl-death", file] => lock_dies_with_its_holder("fcntl", Path::new(file)),
        ["flock-death", file] => lock_dies_with_its_holder("flock", Path::new(file)),
        ["fcntl-interrupt", file] => waiter_is_killed("fcntl", Path::new(file)),
        ["flock-interrupt", file] => waiter_is_killed("flock", Path::new(file)),
        ["fcntl-peer" | "flock-peer", file] => lock_peer(words[0], Path::new(file)),
        ["append", file] => appended(Path::new(file)),
        ["append-peer", file, who] => append_peer(Path::new(file), who),
        _ => {
            eprintln!(
                "mount_probe mmap|mmap-grow|mmap-write|handle|fcntl|flock|KIND-death|KIND-interrupt|append FILE"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount_probe {}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// The other process. Dropped, it is killed.
struct Peer(Child);

impl Peer {
    fn start(words: &[&str], file: &Path) -> Result<Peer, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(words[0]).arg(file).args(&words[1..]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Peer(command.spawn()?))
    }

    /// Hands the turn over with `byte`.
    fn tell(&mut self, byte: u8) -> Outcome {
        let stdin = self.0.stdin.as_mut().expect("invariant: piped");
        stdin.write_all(&[byte])?;
        Ok(())
    }

    /// Waits for the turn and the byte that comes with it.
    fn hear(&mut self) -> Result<u8, Box<dyn std::error::Error>> {
        let mut byte = [0];
        self.0.stdout.as_mut().expect("invariant: piped").read_exact(&mut byte)?;
        Ok(byte[0])
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hear_parent() -> Option<u8> {
    let mut byte = [0];
    std::io::stdin().read_exact(&mut byte).ok().map(|()| byte[0])
}

fn tell_parent(byte: u8) -> Outcome {
    std::io::stdout().write_all(&[byte])?;
    std::io::stdout().flush()?;
    Ok(())
}

fn open(file: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file)
}

/// Where round `round` stores: all over the file, never twice the same place.
fn place(round: u32) -> usize {
    (round as usize * 15_013 + 7) % (MAP_BYTES - 1)
}

/// Each round, the parent stores a byte, the peer sees it and answers beside it.
fn mapped(path: &Path, grow: bool) -> Outcome {
    let file = open(path)?;
    file.set_len(if grow { 5000 } else { MAP_BYTES as u64 })?;
    file.write_all_at(b"before the mapping", 100)?;
    if grow {
        file.set_len(MAP_BYTES as u64)?;
    }
    let map = Mapping::of(&file, MAP_BYTES)?;
    if map.load(100) != b'b' {
        return Err("the mapping lacks what write() wrote".into());
    }
    let mut peer = Peer::start(&["mmap-peer"], path)?;
    for round in 0..ROUNDS {
        let value = (round % 251 + 1) as u8;
        map.store(place(round), value);
        peer.tell(value)?;
        if peer.hear()? != 1 {
            return Err(format!("round {round}: the peer does not see the store").into());
        }
        if map.load(place(round) + 1) != value.wrapping_add(1) {
            return Err(format!("round {round}: the peer's store is not seen").into());
        }
        let mut read = [0; 2];
        file.read_exact_at(&mut read, place(round) as u64)?;
        if read != [value, value.wrapping_add(1)] {
            return Err(format!("round {round}: read() returns {read:?}").into());
        }
    }
    map.sync()?;
    drop((map, peer));
    file.sync_all()?;
    let bytes = std::fs::read(path)?;
    let kept = (0..ROUNDS).all(|round| bytes[place(round)] == (round % 251 + 1) as u8);
    if kept && bytes.len() == MAP_BYTES { Ok(()) } else { Err("stores were lost".into()) }
}

fn mapped_peer(path: &Path) -> Outcome {
    let file = open(path)?;
    let map = Mapping::of(&file, MAP_BYTES)?;
    let mut round = 0;
    while let Some(value) = hear_parent() {
        let seen = map.load(place(round)) == value;
        map.store(place(round) + 1, value.wrapping_add(1));
        tell_parent(u8::from(seen))?;
        round += 1;
    }
    Ok(())
}

/// Both race over the same pages, again and again: the parent writes at one place of each, the peer
/// stores at another. The file is new, so that it may be open in a way that bypasses its pages.
fn written_beside(path: &Path) -> Outcome {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    file.set_len(RACE_BYTES as u64)?;
    let map = Mapping::of(&file, RACE_BYTES)?;
    let mut peer = Peer::start(&["mmap-write-peer"], path)?;
    for round in 1..=RACES {
        peer.tell(round)?;
        for page in (0..RACE_BYTES).step_by(PAGE) {
            file.write_all_at(&[round; WRITTEN], (page + WRITTEN_AT) as u64)?;
        }
        if peer.hear()? != round {
            return Err("the peer is at another round".into());
        }
        let mut bytes = vec![0; RACE_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        for page in (0..RACE_BYTES).step_by(PAGE) {
            let written = &bytes[page + WRITTEN_AT..][..WRITTEN];
            if written != [round; WRITTEN] {
                return Err(format!("round {round}: {written:?} at {page}: a write is lost").into());
            }
            if bytes[page + STORED_AT] != round {
                return Err(format!("round {round}: at {page} a store is lost").into());
            }
            if map.load(page + WRITTEN_AT) != round || map.load(page + STORED_AT) != round {
                return Err(format!("round {round}: the mapping is old at {page}").into());
            }
        }
    }
    Ok(())
}

fn written_beside_peer(path: &Path) -> Outcome {
    let map = Mapping::of(&open(path)?, RACE_BYTES)?;
    while let Some(round) = hear_parent() {
        for page in (0..RACE_BYTES).step_by(PAGE) {
            map.store(page + STORED_AT, round);
        }
        tell_parent(round)?;
    }
    Ok(())
}

/// `struct file_handle` with room for what any file system needs, open_by_handle_at(2).
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES],
}

const HANDLE_BYTES: usize = 128;

impl FileHandle {
    fn of(path: &Path) -> std::io::Result<FileHandle> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut handle = FileHandle { bytes: HANDLE_BYTES as u32, kind: 0, handle: [0; _] };
        let mut mount = 0;
        // SAFETY: all pointers are to values that live for the call; the kernel writes at most
        // `bytes` bytes behind the first two fields.
        let result = unsafe {
            let handle = (&raw mut handle).cast();
            libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle, &raw mut mount, 0)
        };
        if result == 0 { Ok(handle) } else { Err(std::io::Error::last_os_error()) }
    }

    fn open(&mut self, beside: &File) -> std::io::Result<File> {
        // SAFETY: as in `of`; what is returned is a new descriptor, which is ours.
        unsafe {
            let handle = (&raw mut *self).cast();
            match libc::open_by_handle_at(beside.as_raw_fd(), handle, libc::O_RDONLY) {
                -1 => Err(std::io::Error::last_os_error()),
                descriptor => Ok(File::from_raw_fd(descriptor)),
            }
        }
    }
}

/// A file is found by its handle after the kernel has forgotten it, under whatever name, and not
/// after it was deleted.
fn found_by_handle(path: &Path) -> Outcome {
    let text = b"found by its handle";
    std::fs::write(path, text)?;
    let directory = File::open(path.parent().ok_or("no directory")?)?;
    let mut handle = FileHandle::of(path)?;
    let moved = path.with_extension("moved");
    for name in [path, &moved] {
        std::fs::write("/proc/sys/vm/drop_caches", "2")?;
        let mut bytes = Vec::new();
        handle.open(&directory)?.read_to_end(&mut bytes)?;
        if bytes != text {
            return Err(format!("{}: other bytes: {bytes:?}", name.display()).into());
        }
        if name == path {
            std::fs::rename(path, &moved)?;
        }
    }
    std::fs::remove_file(&moved)?;
    match handle.open(&directory) {
        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => Ok(()),
        other => Err(format!("a deleted file is found: {other:?}").into()),
    }
}

fn lock(kind: &str, file: &File, operation: FlockOperation) -> rustix::io::Result<()> {
    if kind.starts_with("fcntl") { fcntl_lock(file, operation) } else { flock(file, operation) }
}

fn is_refused(kind: &str, file: &File) -> bool {
    use rustix::io::Errno;
    lock(kind, file, FlockOperation::NonBlockingLockExclusive)
        .is_err_and(|errno| matches!(errno, Errno::AGAIN | Errno::ACCESS))
}

/// Does what the parent says: `t`ry, `s`hared try, `l`ock and wait, `u`nlock, `r`ead; answers `y`
/// or `n`, or the first byte of the file.
fn lock_peer(kind: &str, path: &Path) -> Outcome {
    let file = open(path)?;
    while let Some(order) = hear_parent() {
        let answer = match order {
            b't' => yes(!is_refused(kind, &file)),
            b's' => yes(lock(kind, &file, FlockOperation::NonBlockingLockShared).is_ok()),
            b'l' => yes(lock(kind, &file, FlockOperation::LockExclusive).is_ok()),
            b'u' => yes(lock(kind, &file, FlockOperation::Unlock).is_ok()),
            _ => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, 0)?;
                byte[0]
            }
        };
        tell_parent(answer)?;
    }
    Ok(())
}

fn yes(condition: bool) -> u8 {
    if condition { b'y' } else { b'n' }
}

fn ask(peer: &mut Peer, order: u8, wanted: u8, what: &str) -> Outcome {
    peer.tell(order)?;
    let answer = peer.hear()?;
    if answer == wanted { Ok(()) } else { Err(format!("{what}: {}", char::from(answer)).into()) }
}

/// Waits until the kernel lists process `id` as waiting for a lock (`-> … PID`).
fn wait_until_blocked(id: u32) -> Outcome {
    let id = id.to_string();
    // The kernel tells of no event; a runner's time limit ends this if the peer never waits.
    loop {
        let table = std::fs::read_to_string("/proc/locks")?;
        let mut waiting = table.lines().filter(|line| line.contains(" -> "));
        if waiting.any(|line| line.split_whitespace().any(|word| word == id)) {
            return Ok(());
        }
        strake_env::thread::yield_now();
    }
}

fn lock_passes_on(kind: &str, path: &Path) -> Outcome {
    let file = open(path)?;
    file.write_all_at(b"1", 0)?;
    let mut peer = Peer::start(&[&format!("{kind}-peer")], path)?;
    lock(kind, &file, FlockOperation::LockShared)?;
    ask(&mut peer, b's', b'y', "a second shared lock")?;
    ask(&mut peer, b'u', b'y', "unlock")?;
    lock(kind, &file, FlockOperation::LockExclusive)?;
    ask(&mut peer, b't', b'n', "an exclusive lock while another is held")?;
    ask(&mut peer, b's', b'n', "a shared lock while an exclusive one is held")?;
    peer.tell(b'l')?;
    wait_until_blocked(peer.0.id())?;
    file.write_all_at(b"2", 0)?;
    lock(kind, &file, FlockOperation::Unlock)?;
    if peer.hear()? != b'y' {
        return Err("the waiting process did not get the lock".into());
    }
    ask(&mut peer, b'r', b'2', "what the holder wrote before it let go")?;
    if !is_refused(kind, &file) {
        return Err("the peer's lock does not keep this process out".into());
    }
    ask(&mut peer, b'u', b'y', "unlock")?;
    lock(kind, &file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(())
}

fn lock_dies_with_its_holder(kind: &str, path: &Path) -> Outcome {
    let file = open(path)?;
    let mut peer = Peer::start(&[&format!("{kind}-peer")], path)?;
    ask(&mut peer, b'l', b'y', "the lock")?;
    if !is_refused(kind, &file) {
        return Err("the peer's lock does not keep this process out".into());
    }
    drop(peer);
    // Blocks for ever if the lock outlived its holder.
    lock(kind, &file, FlockOperation::LockExclusive)?;
    Ok(())
}

fn waiter_is_killed(kind: &str, path: &Path) -> Outcome {
    let file = open(path)?;
    lock(kind, &file, FlockOperation::LockExclusive)?;
    let mut waiter = Peer::start(&[&format!("{kind}-peer")], path)?;
    waiter.tell(b'l')?;
    wait_until_blocked(waiter.0.id())?;
    // Returns only when the process is gone: it was not stuck in the wait.
    drop(waiter);
    let mut other = Peer::start(&[&format!("{kind}-peer")], path)?;
    ask(&mut other, b't', b'n', "an exclusive lock after a waiter was killed")?;
    lock(kind, &file, FlockOperation::Unlock)?;
    ask(&mut other, b't', b'y', "the lock that was let go")
}

fn appended(path: &Path) -> Outcome {
    File::create(path)?;
    let mut peers = Vec::new();
    for who in 0..APPENDERS {
        peers.push(Peer::start(&["append-peer", &who.to_string()], path)?);
    }
    for peer in &mut peers {
        if peer.hear()? != b'y' {
            return Err("a peer could not append".into());
        }
    }
    let text = std::fs::read_to_string(path)?;
    for who in 0..APPENDERS {
        let prefix = format!("{who} ");
        let own = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        if !own.map(str::to_owned).eq((0..RECORDS).map(|number| number.to_string())) {
            return Err(format!("records of process {who} are lost or out of order").into());
        }
    }
    Ok(())
}

fn append_peer(path: &Path, who: &str) -> Outcome {
    let mut file = OpenOptions::new().append(true).open(path)?;
    for number in 0..RECORDS {
        file.write_all(format!("{who} {number}\n").as_bytes())?;
    }
    tell_parent(b'y')
}
