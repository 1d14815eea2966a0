//! What FUSE itself takes: `fuse_alone MOUNT [--rings]` mounts a file system that remembers names
//! and sizes, in memory, and no contents: nothing is copied. The session is the one that Strake
//! has, so what this cannot do Strake cannot either. `bench/compare` has it as a column.
//!
//! It serves until it is unmounted. Of the calls there are those that the compared workloads make.

#[macro_use]
#[path = "shared/unneeded.rs"]
mod unneeded;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use strake_client::Vfs;
use strake_client::vfs::*;
use strake_env::RealClock;
use strake_env::sync::Mutex;
use strake_fuse::{FuseMount, KernelOptions, MountOptions, StayAwake};
use strake_observe::Observe;
use strake_proto::meta::{Cookie, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Generation, Ino, Result, StatFs, Timestamp};
use unneeded::inode;

const ROOT: Ino = Ino(1);
/// Serving threads, and remembered disk I/Os: Strake's own defaults.
const THREADS: usize = 8;
const IO_HISTORY: usize = 512;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (path, io_uring) = match words[..] {
        [path] => (path, false),
        [path, "--rings"] => (path, true),
        _ => {
            eprintln!("fuse_alone MOUNT [--rings]");
            return ExitCode::from(2);
        }
    };
    let options = MountOptions {
        name: "fuse-alone".to_owned(),
        path: path.into(),
        threads: THREADS,
        io_uring,
        stay_awake: StayAwake::Auto,
        kernel: KernelOptions::default(),
    };
    let observe = Observe::new(Arc::new(RealClock), IO_HISTORY);
    match FuseMount::mount(Arc::new(Names::new()), observe, &options) {
        Ok(mount) => {
            mount.wait();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fuse_alone {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A file or directory.
struct Node {
    attr: Attr,
    /// Of a directory: where each name stands in `entries`.
    places: HashMap<Vec<u8>, Cookie>,
    /// Of a directory: in the order in which they were made.
    entries: BTreeMap<Cookie, (Vec<u8>, Ino)>,
}

struct State {
    nodes: HashMap<Ino, Node>,
    /// The last number given to an inode, a place in a directory or a handle; also the time.
    last: u64,
}

/// The file system.
struct Names {
    state: Mutex<State>,
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Never the same twice: the kernel keeps a listing until a time moves.
    fn now(&mut self) -> Timestamp {
        let moment = self.next();
        Timestamp { seconds: moment as i64, nanos: 0 }
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or_else(|| ErrorKind::Stale.into())
    }

    fn find(&mut self, parent: Ino, name: &[u8]) -> Result<(Cookie, Ino)> {
        let directory = self.node(parent)?;
        let place = *directory.places.get(name).ok_or(ErrorKind::NotFound)?;
        Ok((place, directory.entries[&place].1))
    }

    fn make(&mut self, parent: Ino, name: &[u8], kind: FileType, bits: u32) -> Result<Attr> {
        let (time, ino, place) = (self.now(), Ino(self.next()), self.next());
        let directory = self.node(parent)?;
        if directory.places.contains_key(name) {
            return Err(ErrorKind::Exists.into());
        }
        directory.places.insert(name.to_vec(), place);
        directory.entries.insert(place, (name.to_vec(), ino));
        (directory.attr.mtime, directory.attr.ctime) = (time, time);
        let attr = attr(ino, kind, bits, time);
        self.nodes.insert(ino, Node::new(attr));
        Ok(attr)
    }

    fn remove(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let (place, ino) = self.find(parent, name)?;
        if !self.node(ino)?.entries.is_empty() {
            return Err(ErrorKind::NotEmpty.into());
        }
        let time = self.now();
        let directory = self.node(parent)?;
        directory.places.remove(name);
        directory.entries.remove(&place);
        (directory.attr.mtime, directory.attr.ctime) = (time, time);
        self.nodes.remove(&ino);
        Ok(())
    }
}

impl Node {
    fn new(attr: Attr) -> Node {
        Node { attr, places: HashMap::new(), entries: BTreeMap::new() }
    }
}

fn attr(ino: Ino, file_type: FileType, bits: u32, time: Timestamp) -> Attr {
    Attr {
        ino,
        generation: Generation(0),
        file_type,
        permissions: bits & 0o7777,
        links: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

impl Names {
    fn new() -> Names {
        let time = Timestamp { seconds: 0, nanos: 0 };
        let root = Node::new(attr(ROOT, FileType::Directory, 0o755, time));
        Names { state: Mutex::new(State { nodes: HashMap::from([(ROOT, root)]), last: ROOT.0 }) }
    }

    /// A number of its own in the upper half, the inode in the lower one.
    fn handle(state: &mut State, ino: Ino) -> Opened {
        let handle = Handle(state.next() << 32 | ino.0);
        Opened { handle, keep_cache: true, is_new: false }
    }
}

impl Vfs for Names {
    unneeded_operations!();

    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        let mut state = self.state.lock();
        let (_, ino) = state.find(parent, name)?;
        Ok(Entry { attr: state.node(ino)?.attr })
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.state.lock().node(ino)?.attr)
    }
    fn setattr(&self, _: &Caller, ino: Ino, _: Option<Handle>, change: &SetAttr) -> Result<Attr> {
        let mut state = self.state.lock();
        let time = state.now();
        let chosen = |wanted| match wanted {
            SetTime::Now => time,
            SetTime::At(time) => time,
        };
        let attr = &mut state.node(ino)?.attr;
        attr.permissions = change.permissions.unwrap_or(attr.permissions);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.size = change.size.unwrap_or(attr.size);
        attr.atime = change.atime.map_or(attr.atime, chosen);
        attr.mtime = change.mtime.map_or(attr.mtime, chosen);
        attr.ctime = time;
        Ok(*attr)
    }
    fn mknod(&self, _: &Caller, parent: Ino, name: &[u8], node: MakeNode) -> Result<Entry> {
        let attr = self.state.lock().make(parent, name, node.file_type, node.permissions)?;
        Ok(Entry { attr })
    }
    fn mkdir(&self, _: &Caller, parent: Ino, name: &[u8], permissions: u32) -> Result<Entry> {
        let attr = self.state.lock().make(parent, name, FileType::Directory, permissions)?;
        Ok(Entry { attr })
    }
    fn unlink(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.state.lock().remove(parent, name)
    }
    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.state.lock().remove(parent, name)
    }
    fn rename(
        &self,
        _: &Caller,
        _: (Ino, &[u8]),
        _: (Ino, &[u8]),
        _: RenameMode,
    ) -> Result<Renamed> {
        Err(ErrorKind::NotSupported.into())
    }
    fn create(
        &self,
        _: &Caller,
        parent: Ino,
        name: &[u8],
        permissions: u32,
        _: OpenFlags,
        _: bool,
    ) -> Result<(Entry, Opened)> {
        let mut state = self.state.lock();
        let attr = state.make(parent, name, FileType::Regular, permissions)?;
        Ok((Entry { attr }, Names::handle(&mut state, attr.ino)))
    }
    fn open(&self, _: &Caller, ino: Ino, _: OpenFlags) -> Result<Opened> {
        Ok(Names::handle(&mut self.state.lock(), ino))
    }
    /// The reader's buffer keeps what was in it: nothing is copied.
    fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let size = self.state.lock().node(inode(handle))?.attr.size;
        Ok(out.len().min(size.saturating_sub(offset) as usize))
    }
    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        let mut state = self.state.lock();
        let time = state.now();
        let attr = &mut state.node(inode(handle))?.attr;
        attr.size = attr.size.max(offset + bytes.len() as u64);
        (attr.mtime, attr.ctime) = (time, time);
        Ok(bytes.len())
    }
    fn write_mapped(&self, _: Handle, _: u64, bytes: &[u8]) -> Result<usize> {
        Ok(bytes.len())
    }
    fn readdir(
        &self,
        ino: Ino,
        cookie: Cookie,
        with_attrs: bool,
        take: &mut dyn FnMut(&DirItem) -> bool,
    ) -> Result<()> {
        let state = self.state.lock();
        let directory = state.nodes.get(&ino).ok_or(ErrorKind::Stale)?;
        for (&cookie, (name, ino)) in directory.entries.range(cookie + 1..) {
            let attr = state.nodes.get(ino).ok_or(ErrorKind::Internal)?.attr;
            let (name, file_type, ino) = (name.clone(), attr.file_type, *ino);
            let attr = with_attrs.then_some(attr);
            if !take(&DirItem { cookie, name, ino, file_type, attr }) {
                break;
            }
        }
        Ok(())
    }
}
