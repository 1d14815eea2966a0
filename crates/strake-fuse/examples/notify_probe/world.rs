//! A file system in memory that also changes underneath its adapter: what `put`, `remove`, `change`
//! and `rename_elsewhere` do stands for another mount. Requests of a kind can be held up, as a
//! client holds them up that waits for a token.

use crate::unneeded::inode;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use strake_client::Vfs;
use strake_client::invalidate::Invalidate;
use strake_client::vfs::*;
use strake_env::sync::{Condvar, Mutex};
use strake_proto::meta::{Cookie, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Generation, Ino, Result, StatFs, Timestamp};

pub(crate) const ROOT: Ino = Ino(1);

/// A file or directory.
#[derive(Clone)]
struct Node {
    attr: Attr,
    names: BTreeMap<Vec<u8>, Ino>,
    bytes: Vec<u8>,
}

/// Requests that are held up while they stand in [`World::hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HeldBack {
    /// After the attributes were read.
    Attributes(Ino),
    Lookup,
    Create,
    Read(Ino),
    WriteBack(Ino),
}

struct State {
    nodes: HashMap<Ino, Node>,
    /// The last number given to an inode or a handle; also the time.
    last: u64,
    held: BTreeSet<HeldBack>,
    /// How many requests of each kind are held up, or were.
    met: BTreeMap<HeldBack, u64>,
}

/// See the module.
pub(crate) struct World {
    state: Mutex<State>,
    changed: Condvar,
    adapter: OnceLock<Arc<dyn Invalidate>>,
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or_else(|| ErrorKind::Stale.into())
    }

    fn find(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        if name == b"." {
            return Ok(parent);
        }
        self.node(parent)?.names.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// A new moment, as a change of `ino`: the kernel keeps a listing until one passes.
    fn touch(&mut self, ino: Ino) -> Result<()> {
        let time = Timestamp { seconds: self.next() as i64, nanos: 0 };
        let attr = &mut self.node(ino)?.attr;
        (attr.mtime, attr.ctime) = (time, time);
        Ok(())
    }

    fn make(&mut self, parent: Ino, name: &[u8], file_type: FileType, bits: u32) -> Result<Attr> {
        let time = Timestamp { seconds: self.next() as i64, nanos: 0 };
        let ino = Ino(self.next());
        let attr = Attr {
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
        };
        if parent.0 != 0 {
            if self.node(parent)?.names.insert(name.to_vec(), ino).is_some() {
                return Err(ErrorKind::Exists.into());
            }
            self.touch(parent)?;
        }
        self.nodes.insert(ino, Node { attr, names: BTreeMap::new(), bytes: Vec::new() });
        Ok(attr)
    }

    /// The inode stays, as one that somebody else has open does.
    fn remove(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let ino = self.node(parent)?.names.remove(name).ok_or(ErrorKind::NotFound)?;
        self.touch(parent)?;
        self.node(ino)?.attr.links = 0;
        Ok(ino)
    }

    fn rename(&mut self, source: (Ino, &[u8]), target: (Ino, &[u8])) -> Result<()> {
        let ino = self.node(source.0)?.names.remove(source.1).ok_or(ErrorKind::NotFound)?;
        self.node(target.0)?.names.insert(target.1.to_vec(), ino);
        self.touch(source.0)?;
        self.touch(target.0)
    }

    fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let end = offset as usize + bytes.len();
        let length = node.bytes.len().max(end);
        node.bytes.resize(length, 0);
        node.bytes[offset as usize..end].copy_from_slice(bytes);
        node.attr.size = length as u64;
        self.touch(ino)?;
        Ok(bytes.len())
    }
}

/// What another mount would do.
impl World {
    pub(crate) fn new() -> Arc<World> {
        let (held, met) = (BTreeSet::new(), BTreeMap::new());
        let mut state = State { nodes: HashMap::new(), last: 0, held, met };
        let root = state.make(Ino(0), b"", FileType::Directory, 0o755).expect("it is the first");
        let mut node = state.nodes.remove(&root.ino).expect("just made");
        node.attr.ino = ROOT;
        state.nodes.insert(ROOT, node);
        let (changed, adapter) = (Condvar::new(), OnceLock::new());
        Arc::new(World { state: Mutex::new(state), changed, adapter })
    }

    pub(crate) fn adapter(&self) -> &dyn Invalidate {
        &**self.adapter.get().expect("invariant: it is attached before the first request")
    }

    /// A file with these bytes under a new name.
    pub(crate) fn put(&self, parent: Ino, name: &str, bytes: &[u8]) -> Ino {
        let mut state = self.state.lock();
        let made = state.make(parent, name.as_bytes(), FileType::Regular, 0o644);
        let ino = made.expect("a new name in a directory that is there").ino;
        state.write(ino, 0, bytes).expect("just made");
        ino
    }

    pub(crate) fn make_directory(&self, parent: Ino, name: &str) -> Ino {
        let made = self.state.lock().make(parent, name.as_bytes(), FileType::Directory, 0o755);
        made.expect("a new name in a directory that is there").ino
    }

    pub(crate) fn remove(&self, parent: Ino, name: &str) -> Ino {
        self.state.lock().remove(parent, name.as_bytes()).expect("it is there")
    }

    pub(crate) fn rename_elsewhere(&self, source: (Ino, &str), target: (Ino, &str)) {
        let (source, target) = ((source.0, source.1.as_bytes()), (target.0, target.1.as_bytes()));
        self.state.lock().rename(source, target).expect("it is there");
    }

    /// Other contents, of any length.
    pub(crate) fn change(&self, ino: Ino, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.node(ino).expect("it is there").bytes.clear();
        state.write(ino, 0, bytes).expect("it is there");
    }

    pub(crate) fn change_mode(&self, ino: Ino, permissions: u32) {
        let mut state = self.state.lock();
        state.node(ino).expect("it is there").attr.permissions = permissions;
        state.touch(ino).expect("it is there");
    }

    pub(crate) fn bytes(&self, ino: Ino) -> Vec<u8> {
        self.state.lock().node(ino).expect("it is there").bytes.clone()
    }

    pub(crate) fn modified(&self, ino: Ino) -> i64 {
        self.state.lock().node(ino).expect("it is there").attr.mtime.seconds
    }

    pub(crate) fn names(&self, parent: Ino) -> Vec<String> {
        let mut state = self.state.lock();
        let names = state.node(parent).expect("it is there").names.keys();
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Requests of this kind are held up until [`World::let_go`].
    pub(crate) fn hold(&self, what: HeldBack) {
        self.state.lock().held.insert(what);
    }

    pub(crate) fn let_go(&self, what: HeldBack) {
        self.state.lock().held.remove(&what);
        self.changed.notify_all();
    }

    /// Waits until `count` requests of this kind were held up; false if there is none in time.
    pub(crate) fn meets(&self, what: HeldBack, count: u64, limit: Duration) -> bool {
        let mut state = self.state.lock();
        let is_missing = |state: &mut State| state.met.get(&what).is_none_or(|met| *met < count);
        self.changed.wait_while_for(&mut state, is_missing, limit);
        !is_missing(&mut state)
    }

    fn pass(&self, what: HeldBack) {
        let mut state = self.state.lock();
        if state.held.contains(&what) {
            *state.met.entry(what).or_default() += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| state.held.contains(&what));
        }
    }

    /// A number of its own in the upper half, the inode in the lower one.
    fn opened(state: &mut State, ino: Ino) -> Opened {
        let handle = Handle(state.next() << 32 | ino.0);
        Opened { handle, keep_cache: true, is_new: false }
    }
}

impl Vfs for World {
    unneeded_operations!();

    fn attach_adapter(&self, adapter: Arc<dyn Invalidate>) {
        assert!(self.adapter.set(adapter).is_ok(), "one adapter");
    }
    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.pass(HeldBack::Lookup);
        let mut state = self.state.lock();
        let ino = state.find(parent, name)?;
        Ok(Entry { attr: state.node(ino)?.attr })
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let attr = self.state.lock().node(ino)?.attr;
        self.pass(HeldBack::Attributes(ino));
        Ok(attr)
    }
    fn setattr(&self, _: &Caller, ino: Ino, _: Option<Handle>, change: &SetAttr) -> Result<Attr> {
        let mut state = self.state.lock();
        let node = state.node(ino)?;
        node.attr.permissions = change.permissions.unwrap_or(node.attr.permissions);
        if let Some(size) = change.size {
            node.bytes.resize(size as usize, 0);
            node.attr.size = size;
        }
        state.touch(ino)?;
        Ok(state.node(ino)?.attr)
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
        self.state.lock().remove(parent, name).map(drop)
    }
    fn rmdir(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.state.lock().remove(parent, name).map(drop)
    }
    fn rename(
        &self,
        _: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        _: RenameMode,
    ) -> Result<Renamed> {
        let mut state = self.state.lock();
        state.rename(source, target)?;
        Ok(Renamed { moved: [Some(state.find(target.0, target.1)?), None] })
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
        self.pass(HeldBack::Create);
        let mut state = self.state.lock();
        let attr = match state.find(parent, name) {
            Ok(ino) => state.node(ino)?.attr,
            Err(_) => state.make(parent, name, FileType::Regular, permissions)?,
        };
        Ok((Entry { attr }, World::opened(&mut state, attr.ino)))
    }
    fn open(&self, _: &Caller, ino: Ino, _: OpenFlags) -> Result<Opened> {
        Ok(World::opened(&mut self.state.lock(), ino))
    }
    fn read(&self, handle: Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.pass(HeldBack::Read(inode(handle)));
        let mut state = self.state.lock();
        let bytes = &state.node(inode(handle))?.bytes;
        let tail = &bytes[(offset as usize).min(bytes.len())..];
        let count = tail.len().min(out.len());
        out[..count].copy_from_slice(&tail[..count]);
        Ok(count)
    }
    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.state.lock().write(inode(handle), offset, bytes)
    }
    /// The kernel writes whole pages; what is beyond the end is not the file's.
    fn write_mapped(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.pass(HeldBack::WriteBack(inode(handle)));
        let mut state = self.state.lock();
        let size = state.node(inode(handle))?.bytes.len() as u64;
        let inside = bytes.len().min(size.saturating_sub(offset) as usize);
        state.write(inode(handle), offset, &bytes[..inside])?;
        Ok(bytes.len())
    }
    /// Cookies are places in the order of names, which is good enough for small directories.
    fn readdir(
        &self,
        ino: Ino,
        cookie: Cookie,
        with_attrs: bool,
        take: &mut dyn FnMut(&DirItem) -> bool,
    ) -> Result<()> {
        let state = self.state.lock();
        let directory = state.nodes.get(&ino).ok_or(ErrorKind::Stale)?;
        for (place, (name, ino)) in directory.names.iter().enumerate().skip(cookie as usize) {
            let attr = state.nodes.get(ino).ok_or(ErrorKind::Internal)?.attr;
            let (cookie, name, ino) = (place as u64 + 1, name.clone(), *ino);
            let file_type = attr.file_type;
            let attr = with_attrs.then_some(attr);
            if !take(&DirItem { cookie, name, ino, file_type, attr }) {
                break;
            }
        }
        Ok(())
    }
}
