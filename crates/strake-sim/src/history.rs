//! Random POSIX histories on the real stack. Each operation is also told to the model.
//!
//! The universe is small, so that operations meet: a few names in a few directories, and files of
//! up to two and a half blocks, often of exactly one block.

mod names_together;
mod together;

use crate::judge::{Promise, judge, survey};
use crate::machine::{BLOCK_SIZE, Machine, SERVER, Stack};
use crate::point::draw_away;
use crate::recording::{Mark, Recording, Sync};
use crate::tree::{Contents, Kind, Node, Times, Tree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_array::stripe_io::SendCounts;
use strake_client::Patches;
use strake_client::vfs::{FallocateMode, Handle, MakeNode, OpenFlags, SetAttr, Vfs};
use strake_env::disk::sim::Sequence;
use strake_env::simulation::network;
use strake_env::{Clock, RealClock, Rng};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::{RenameMode, XattrMode};
use strake_proto::nsd::{NsdContext, NsdPort, NsdRequest};
use strake_proto::{Caller, Code, ErrorKind, FileType, Ino};

const ROOT: &Caller = &Caller::ROOT;
const ROOT_INO: u64 = 1;
/// The longest size of a file.
const SIZE_MAX: u64 = BLOCK_SIZE as u64 * 5 / 2;
const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
const DIRECTORIES_MAX: usize = 4;
const FILES_MAX: usize = 6;

/// How files are opened here.
pub const READ_WRITE: OpenFlags = OpenFlags { no_atime: true, ..OpenFlags::READ_WRITE };

/// A history under way.
struct Actor {
    machine: Machine,
    sequence: Sequence,
    stack: Option<Stack>,
    rng: Rng,
    seed: u64,
    tree: Arc<Tree>,
    contents: Contents,
    times: Times,
    marks: Vec<Mark>,
    /// The one handle of each open file, by inode number.
    open: BTreeMap<u64, Handle>,
    /// The NSDs that are away: a mask of slots.
    away: u32,
    /// Open files without a name.
    nameless: BTreeMap<u64, Node>,
    salt: u64,
    /// Whether about every third step is done by several threads at once.
    is_crowded: bool,
    /// How its stacks have sent their blocks.
    sends: SendCounts,
}

/// Runs a history of `steps` operations with `count` NSDs.
///
/// # Panics
/// If the stack does anything that the model does not. The test has then failed.
pub fn run(code: Code, count: usize, seed: u64, steps: usize) -> Recording {
    let mut actor = Actor::begin(code, count, seed);
    for _ in 0..steps {
        actor.step();
    }
    actor.end()
}

/// Runs a history and returns how it sent its blocks.
///
/// # Panics
/// As [`run`].
pub fn sends(code: Code, count: usize, seed: u64, steps: usize) -> SendCounts {
    let mut actor = Actor::begin(code, count, seed);
    for _ in 0..steps {
        actor.step();
    }
    if let Some(stack) = actor.stack.take() {
        actor.count_sends(&stack);
    }
    actor.sends
}

/// Runs a history in which about every third step is done by two to four threads.
///
/// # Panics
/// As [`run`].
pub fn run_crowd(code: Code, count: usize, seed: u64, steps: usize) -> Recording {
    crowd(code, count, seed, steps, false)
}

/// Like `run_crowd`, but metadata and NSDs run in another simulated process, behind a network that
/// loses a packet now and then.
///
/// # Panics
/// As [`run`].
pub fn run_remote_crowd(code: Code, count: usize, seed: u64, steps: usize) -> Recording {
    for (from, to) in [(0, SERVER), (SERVER, 0)] {
        network().set_link(from, to, |link| link.loss_one_in = 200);
    }
    crowd(code, count, seed, steps, true)
}

fn crowd(code: Code, count: usize, seed: u64, steps: usize, is_remote: bool) -> Recording {
    let mut actor = Actor::format(code, count, seed);
    actor.is_crowded = true;
    actor.machine.is_remote = is_remote;
    actor.start();
    for _ in 0..steps {
        actor.step();
    }
    actor.end()
}

/// Runs a history that does little but overwrite one block again and again, durably here and there.
/// What a crash leaves of such a block is hardest for the recovery of stripes.
///
/// # Panics
/// As [`run`].
pub fn run_overwrites(code: Code, count: usize, seed: u64, steps: usize) -> Recording {
    let mut actor = Actor::begin(code, count, seed);
    while actor.any_file().is_none() {
        let begin = actor.sequence.position();
        if let Some((what, sync)) = actor.create() {
            actor.mark(what, begin, sync);
        }
    }
    for _ in 0..steps {
        actor.machine.clock.advance(Duration::from_millis(1));
        let begin = actor.sequence.position();
        let done = match actor.rng.below(8) {
            0..=4 => actor.burst(),
            5..=6 => actor.fsync(),
            _ => {
                actor.restart(false);
                continue;
            }
        };
        if let Some((what, sync)) = done {
            actor.mark(what, begin, sync);
        }
    }
    actor.end()
}

impl Actor {
    /// Makes a new file system and opens it.
    fn begin(code: Code, count: usize, seed: u64) -> Actor {
        let mut actor = Actor::format(code, count, seed);
        actor.start();
        actor
    }

    /// Makes a new file system.
    fn format(code: Code, count: usize, seed: u64) -> Actor {
        let sequence = Sequence::default();
        let mut machine = Machine::format(code, count, &sequence).expect("formats");
        // Half of the histories send patches wherever they can.
        machine.patches = [Patches::Auto, Patches::Always][seed as usize % 2];
        let root = Node::new(Kind::Directory(BTreeMap::new()), 0o755);
        let mut actor = Actor {
            machine,
            sequence,
            stack: None,
            rng: Rng::new(seed),
            seed,
            tree: Arc::new(Tree(BTreeMap::from([(ROOT_INO, root)]))),
            contents: Contents::new(),
            times: Times::new(),
            marks: Vec::new(),
            open: BTreeMap::new(),
            away: 0,
            nameless: BTreeMap::new(),
            salt: seed << 20,
            is_crowded: false,
            sends: SendCounts::default(),
        };
        let end = actor.sequence.position();
        actor.mark("format".to_owned(), end, Sync::All);
        actor
    }

    fn end(mut self) -> Recording {
        if let Some(stack) = self.stack.take() {
            self.count_sends(&stack);
        }
        println!("seed {}, patches {:?}: {:?}", self.seed, self.machine.patches, self.sends);
        Recording::of(&self.machine, self.seed, self.marks, self.contents, self.times)
    }

    /// Counts how a stack that ends has sent its blocks.
    fn count_sends(&mut self, stack: &Stack) {
        let SendCounts { whole, patches, not_base } = stack.vfs.array().io.send_counts();
        self.sends.whole += whole;
        self.sends.patches += patches;
        self.sends.not_base += not_base;
    }

    fn vfs(&self) -> &dyn Vfs {
        &*self.stack.as_ref().expect("a history runs on an open stack").vfs
    }

    fn mark(&mut self, what: String, begin: u64, sync: Sync) {
        let (end, tree) = (self.sequence.position(), Arc::clone(&self.tree));
        let begins_life = what.starts_with("start") || what.starts_with("restart");
        self.push(Mark { what, begin, end, sync, begins_life, away: self.away, tree });
    }

    fn push(&mut self, mark: Mark) {
        self.note_times();
        self.marks.push(mark);
    }

    /// Notes the times that each inode has after the present operation.
    fn note_times(&mut self) {
        let Some(stack) = &self.stack else { return };
        let op = self.marks.len();
        for ino in self.tree.0.keys().chain(self.nameless.keys()) {
            let Ok(attr) = stack.vfs.getattr(Ino(*ino)) else { continue };
            let (states, now) = (self.times.entry(*ino).or_default(), (attr.mtime, attr.ctime));
            if states.last().is_none_or(|(_, last)| *last != now) {
                states.push((op, now));
            }
        }
    }

    fn start(&mut self) {
        let begin = self.sequence.position();
        self.stack = Some(self.machine.open().expect("starts"));
        // The root's mode is what the format gave it.
        let found = self.vfs().getattr(Ino(ROOT_INO)).expect("the root is there");
        Arc::make_mut(&mut self.tree).node_mut(ROOT_INO).permissions = found.permissions;
        self.mark("start".to_owned(), begin, Sync::All);
        self.marks[0].tree = Arc::clone(&self.tree);
    }

    /// Ends the stack, orderly or not, and starts it anew. Sometimes NSDs are then away, and
    /// sometimes NSDs that were away are back. After a kill the model takes over what is found;
    /// from then on it is promised.
    fn restart(&mut self, orderly: bool) {
        let before = self.away;
        let parity = usize::from(self.machine.code.parity);
        if self.away != 0 {
            self.away = if self.rng.one_in(3) { self.away } else { 0 };
        } else if self.rng.one_in(2) {
            self.away = draw_away(self.machine.disks.len(), parity, &mut self.rng);
        }
        let begin = self.sequence.position();
        let stack = self.stack.take().expect("a history runs on an open stack");
        if orderly {
            for handle in std::mem::take(&mut self.open).into_values() {
                stack.vfs.release(handle);
            }
            stack.shutdown().expect("shuts down");
            stack.meta.end_life(self.machine.clock.wall()).expect("ends");
            stack.meta.checkpoint().expect("checkpoints");
        }
        self.count_sends(&stack);
        drop(stack);
        self.open.clear();
        self.nameless.clear();
        let stack = self.machine.less(self.away).open().expect("starts again");
        let found = survey(&stack);
        let promise = Promise::at(&self.marks, &self.contents, &self.times, begin);
        if let Err(fault) = judge(&promise, &found) {
            panic!("seed {}: after a restart (orderly: {orderly}): {fault}", self.seed);
        }
        if orderly {
            assert_eq!(found.tree, *self.tree, "seed {}: an orderly end loses names", self.seed);
        }
        self.tree = Arc::new(found.tree);
        let op = self.marks.len();
        for (ino, bytes) in found.files {
            let states = self.contents.entry(ino).or_default();
            let same = states.last().is_some_and(|(_, last)| **last == bytes);
            assert!(same || !orderly, "seed {}: an orderly end loses bytes", self.seed);
            if !same {
                states.push((op, Arc::new(bytes)));
            }
        }
        if before & !self.away != 0 {
            stack.manager.recover_nsds();
            // Makes the missing copies of the metadata, as the background worker would in time.
            (0..=parity).for_each(|_| stack.meta.tick());
            let away = stack
                .vfs
                .array()
                .nsds()
                .iter()
                .filter(|it| !it.state.availability.readable())
                .count();
            assert_eq!(away, self.away.count_ones() as usize, "what returned is up");
        }
        self.stack = Some(stack);
        let now = self.away;
        self.away |= before;
        self.mark(format!("restart, orderly: {orderly}, away {now:#b}"), begin, Sync::All);
        self.away = now;
    }

    fn step(&mut self) {
        // Each operation happens at a time of its own.
        self.machine.clock.advance(Duration::from_millis(1));
        if self.is_crowded && self.rng.one_in(3) {
            match self.rng.below(4) {
                0 => self.names_together(),
                _ => self.together(),
            }
            return;
        }
        if self.machine.patches == Patches::Always && self.rng.one_in(5) {
            self.overwrite_parts();
            return;
        }
        let begin = self.sequence.position();
        let draw = self.rng.below(104);
        let done = match draw {
            0..=11 => self.create(),
            12..=30 => self.write(),
            31..=35 => self.burst(),
            36..=42 => self.truncate(),
            43..=46 => self.allocate(),
            47..=62 => self.fsync(),
            63..=64 => self.sync(),
            65..=66 => self.sync_directory(),
            67..=69 => self.make_directory(),
            70..=75 => self.rename(),
            76..=79 => self.unlink(),
            80..=81 => self.link(),
            82 => self.make_other(),
            83..=84 => self.attribute(),
            85..=86 => self.extended_attribute(),
            87 => self.nameless(),
            88..=90 => self.close(),
            91..=92 => self.copy(),
            93 => self.tend(),
            94 => self.burst(),
            100..=101 => self.write_through(),
            102..=103 => {
                self.together();
                return;
            }
            95..=98 => {
                let orderly = self.rng.one_in(3);
                self.restart(orderly);
                return;
            }
            _ => self.read(),
        };
        if let Some((what, sync)) = done {
            self.mark(what, begin, sync);
        }
    }

    fn any_directory(&mut self) -> u64 {
        let all = self.tree.directories();
        if self.rng.one_in(2) { ROOT_INO } else { all[self.rng.index(all.len())] }
    }

    fn any_name(&mut self) -> &'static [u8] {
        NAMES[self.rng.index(NAMES.len())]
    }

    /// A directory, a name, and the inode that has this name in the directory.
    fn any_place(&mut self) -> (u64, &'static [u8], Option<u64>) {
        let dir = self.any_directory();
        let name = self.any_name();
        (dir, name, self.tree.look_up(dir, name))
    }

    /// Any regular file that is open or has a name.
    fn any_file(&mut self) -> Option<u64> {
        let is_file = |(_, node): &(&u64, &Node)| node.kind == Kind::File;
        let mut all: Vec<u64> = self.tree.0.iter().filter(is_file).map(|(ino, _)| *ino).collect();
        all.extend(self.nameless.keys());
        (!all.is_empty()).then(|| all[self.rng.index(all.len())])
    }

    fn handle(&mut self, ino: u64) -> Handle {
        if let Some(handle) = self.open.get(&ino) {
            return *handle;
        }
        let opened = self.vfs().open(ROOT, Ino(ino), READ_WRITE).expect("opens");
        self.open.insert(ino, opened.handle);
        opened.handle
    }

    fn latest(&self, ino: u64) -> Vec<u8> {
        self.contents
            .get(&ino)
            .and_then(|states| states.last())
            .map_or(Vec::new(), |(_, bytes)| Vec::clone(bytes))
    }

    /// Notes what a file holds after the present operation.
    fn now_holds(&mut self, ino: u64, bytes: Vec<u8>) {
        let op = self.marks.len();
        self.contents.entry(ino).or_default().push((op, Arc::new(bytes)));
    }

    /// Bytes that no other write wrote.
    fn fresh_bytes(&mut self, length: usize) -> Vec<u8> {
        self.salt += 1;
        let mut bytes = Vec::with_capacity(length + 8);
        let mut word = self.salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while bytes.len() < length {
            bytes.extend_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
        }
        bytes.truncate(length);
        bytes
    }

    fn create(&mut self) -> Option<(String, Sync)> {
        let (dir, name, held) = self.any_place();
        let truncate = self.rng.one_in(2);
        let files = self.tree.0.values().filter(|node| node.kind == Kind::File).count();
        match held {
            None if files >= FILES_MAX => return None,
            Some(ino) if self.tree.node(ino).kind != Kind::File => return None,
            Some(ino) if self.open.contains_key(&ino) && !truncate => return None,
            _ => {}
        }
        let flags = OpenFlags { truncate, ..READ_WRITE };
        let (entry, opened) =
            self.vfs().create(ROOT, Ino(dir), name, 0o640, flags, held.is_none()).expect("creates");
        let ino = entry.attr.ino.0;
        self.vfs().forget(Ino(ino), 1);
        if let Some(before) = self.open.insert(ino, opened.handle) {
            self.vfs().release(before);
        }
        if held.is_none() {
            Arc::make_mut(&mut self.tree).make(dir, name, ino, Node::new(Kind::File, 0o640));
        }
        if held.is_none() || truncate {
            self.now_holds(ino, Vec::new());
        }
        Some((format!("create {dir}/{} = {ino}, truncate {truncate}", text(name)), Sync::Nothing))
    }

    /// Where to write, given the size of the file.
    fn extent(&mut self, size: u64) -> (u64, u64) {
        let block = u64::from(BLOCK_SIZE);
        let rng = &mut self.rng;
        let (offset, length) = match rng.below(8) {
            // The whole of one block. A bug once made such a block read back as zeros.
            0 | 1 => (0, block),
            2 => (size, 1 + rng.below(70_000)),
            3 => (rng.below(size.max(1)) / 4096 * 4096, 4096),
            4 => (rng.below(size.max(1)), 1 + rng.below(9000)),
            5 => (0, 1 + rng.below(4000)),
            6 => (size.saturating_sub(100), 1 + rng.below(block)),
            _ => (rng.below(SIZE_MAX), 1 + rng.below(block)),
        };
        (offset, length.min(SIZE_MAX.saturating_sub(offset)))
    }

    fn write(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let handle = self.handle(ino);
        let mut bytes = self.latest(ino);
        let (offset, length) = self.extent(bytes.len() as u64);
        if length == 0 {
            return None;
        }
        let data = self.fresh_bytes(length as usize);
        let written = self.vfs().write(handle, offset, &data).expect("writes");
        assert_eq!(written, data.len(), "there is room");
        let end = (offset + length) as usize;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(&data);
        self.now_holds(ino, bytes);
        Some((format!("write {ino} at {offset}, {length}"), Sync::Nothing))
    }

    /// A write through a handle with `O_SYNC`: each write is also an fsync.
    fn write_through(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let mut bytes = self.latest(ino);
        let (offset, length) = self.extent(bytes.len() as u64);
        if length == 0 {
            return None;
        }
        let data = self.fresh_bytes(length as usize);
        let flags = OpenFlags { sync: true, ..READ_WRITE };
        let handle = self.vfs().open(ROOT, Ino(ino), flags).expect("opens").handle;
        let written = self.vfs().write(handle, offset, &data).expect("writes");
        assert_eq!(written, data.len(), "there is room");
        self.vfs().release(handle);
        let end = (offset + length) as usize;
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset as usize..end].copy_from_slice(&data);
        self.now_holds(ino, bytes);
        Some((format!("write {ino} at {offset}, {length}, O_SYNC"), Sync::File(ino)))
    }

    /// Overwrites a block a few times. Each time some NSDs make durable what they have, as they do
    /// when a log is full. A crash then finds several versions, each on some of the NSDs.
    fn burst(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let handle = self.handle(ino);
        for _ in 0..2 + self.rng.index(2) {
            let begin = self.sequence.position();
            let data = self.fresh_bytes(BLOCK_SIZE as usize);
            self.vfs().write(handle, 0, &data).expect("writes");
            let mut bytes = self.latest(ino);
            bytes.resize(bytes.len().max(data.len()), 0);
            bytes[..data.len()].copy_from_slice(&data);
            self.now_holds(ino, bytes);
            // Whether write-behind has sent the block by then decides between two histories.
            RealClock.sleep(Duration::from_millis(1));
            let chosen = self.rng.next_u64();
            let stack = self.stack.as_ref().expect("a history runs on an open stack");
            for (slot, store) in stack.stores.iter().enumerate() {
                let request = NsdRequest::Commit { settled: Vec::new() };
                if let Some(store) = store.as_ref().filter(|_| chosen >> slot & 1 == 1) {
                    let reply = store.call(NsdContext::default(), &request, &[], &mut []);
                    reply.expect("commits");
                }
            }
            self.mark(format!("overwrite block 0 of {ino}"), begin, Sync::Nothing);
        }
        None
    }

    /// Overwrites small parts of a file a few times, with a sync each time. When the block of a
    /// part is stable, the part is sent as a patch.
    fn overwrite_parts(&mut self) {
        let Some(ino) = self.any_file() else { return };
        let handle = self.handle(ino);
        for _ in 0..3 {
            let begin = self.sequence.position();
            let mut bytes = self.latest(ino);
            if bytes.is_empty() {
                return;
            }
            let offset = self.rng.index(bytes.len());
            let length = (bytes.len() - offset).min(1 + self.rng.index(2 * UNIT_BYTES));
            let data = self.fresh_bytes(length);
            self.vfs().write(handle, offset as u64, &data).expect("writes");
            bytes[offset..offset + length].copy_from_slice(&data);
            self.now_holds(ino, bytes);
            self.mark(format!("overwrite {ino} at {offset}, {length}"), begin, Sync::Nothing);
            let begin = self.sequence.position();
            if let Some((what, sync)) = self.sync() {
                self.mark(what, begin, sync);
            }
        }
    }

    fn truncate(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let mut bytes = self.latest(ino);
        let size = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(bytes.len() as u64 + 1),
            2 => u64::from(BLOCK_SIZE),
            _ => self.rng.below(SIZE_MAX),
        };
        let handle = self.handle(ino);
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs().setattr(ROOT, Ino(ino), Some(handle), &change).expect("truncates");
        bytes.resize(size as usize, 0);
        self.now_holds(ino, bytes);
        Some((format!("truncate {ino} to {size}"), Sync::Nothing))
    }

    fn allocate(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let mut bytes = self.latest(ino);
        let handle = self.handle(ino);
        let (from, length) = self.extent(bytes.len() as u64);
        if length == 0 {
            return None;
        }
        let to = from + length;
        let keep_size = self.rng.one_in(2);
        let mode = match self.rng.below(4) {
            0 => FallocateMode::Allocate { keep_size },
            1 => FallocateMode::ZeroRange { keep_size },
            _ => FallocateMode::PunchHole,
        };
        let done = self.vfs().fallocate(handle, from..to, mode);
        let allocates = !matches!(mode, FallocateMode::PunchHole);
        if allocates && keep_size && bytes.len() < to as usize {
            let refused = done.expect_err("no space is kept beyond the end").kind();
            assert_eq!(refused, ErrorKind::NotSupported);
            return None;
        }
        done.expect("allocates");
        let grows = allocates && !keep_size;
        if grows && bytes.len() < to as usize {
            bytes.resize(to as usize, 0);
        }
        if !matches!(mode, FallocateMode::Allocate { .. }) {
            let end = bytes.len().min(to as usize);
            bytes[end.min(from as usize)..end].fill(0);
        }
        self.now_holds(ino, bytes);
        Some((format!("fallocate {ino} {from}..{to} {mode:?}"), Sync::Nothing))
    }

    fn fsync(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let handle = self.handle(ino);
        self.vfs().fsync(handle).expect("syncs");
        Some((format!("fsync {ino}"), Sync::File(ino)))
    }

    fn sync(&mut self) -> Option<(String, Sync)> {
        self.vfs().sync().expect("syncs");
        Some(("sync".to_owned(), Sync::All))
    }

    fn sync_directory(&mut self) -> Option<(String, Sync)> {
        let dir = self.any_directory();
        self.vfs().fsyncdir(Ino(dir)).expect("syncs");
        let sync = if dir == ROOT_INO { Sync::All } else { Sync::Names };
        Some((format!("fsync directory {dir}"), sync))
    }

    fn make_directory(&mut self) -> Option<(String, Sync)> {
        let (dir, name, held) = self.any_place();
        if held.is_some() || self.tree.directories().len() >= DIRECTORIES_MAX {
            return None;
        }
        let entry = self.vfs().mkdir(ROOT, Ino(dir), name, 0o750).expect("makes");
        let ino = entry.attr.ino.0;
        self.vfs().forget(Ino(ino), 1);
        let node = Node::new(Kind::Directory(BTreeMap::new()), 0o750);
        Arc::make_mut(&mut self.tree).make(dir, name, ino, node);
        Some((format!("mkdir {dir}/{} = {ino}", text(name)), Sync::Nothing))
    }

    fn make_other(&mut self) -> Option<(String, Sync)> {
        let (dir, name, held) = self.any_place();
        if held.is_some() {
            return None;
        }
        let (entry, node) = if self.rng.one_in(2) {
            let target = self.fresh_bytes(1 + name.len() * 9);
            let target: Vec<u8> = target.iter().map(|byte| byte | 1).collect();
            let entry = self.vfs().symlink(ROOT, Ino(dir), name, &target).expect("links");
            (entry, Node::new(Kind::Symlink(target), 0o777))
        } else {
            let node = MakeNode { file_type: FileType::Fifo, permissions: 0o600, rdev: 0 };
            let entry = self.vfs().mknod(ROOT, Ino(dir), name, node).expect("makes");
            (entry, Node::new(Kind::Fifo, 0o600))
        };
        let ino = entry.attr.ino.0;
        self.vfs().forget(Ino(ino), 1);
        Arc::make_mut(&mut self.tree).make(dir, name, ino, node);
        Some((format!("make {dir}/{} = {ino}", text(name)), Sync::Nothing))
    }

    fn rename(&mut self) -> Option<(String, Sync)> {
        let (dir, name, held) = self.any_place();
        let (new_dir, new_name, replaced) = self.any_place();
        let held = held?;
        let node = self.tree.node(held);
        let mut mode = RenameMode::Replace;
        if node.names().is_some() && self.tree.is_below(new_dir, held) {
            return None;
        }
        match replaced {
            Some(other) if self.rng.one_in(3) => {
                let inside = |above: u64, dir: u64| {
                    self.tree.node(above).names().is_some() && self.tree.is_below(dir, above)
                };
                if held == other || inside(other, dir) {
                    return None;
                }
                mode = RenameMode::Exchange;
            }
            Some(other) => {
                let target = self.tree.node(other);
                let replaceable = match (node.names(), target.names()) {
                    (None, None) => true,
                    (Some(_), Some(names)) => names.is_empty() && held != other,
                    _ => false,
                };
                if !replaceable {
                    return None;
                }
            }
            None => {}
        }
        self.vfs().rename(ROOT, (Ino(dir), name), (Ino(new_dir), new_name), mode).expect("renames");
        let tree = Arc::make_mut(&mut self.tree);
        match mode {
            RenameMode::Exchange => tree.exchange((dir, name), (new_dir, new_name)),
            _ => {
                let before = replaced.map(|ino| (ino, tree.node(ino).clone()));
                tree.rename((dir, name), (new_dir, new_name));
                if let Some((ino, node)) = before.filter(|(ino, _)| !tree.0.contains_key(ino)) {
                    self.lost_its_name(ino, node);
                }
            }
        }
        let (name, new_name) = (text(name), text(new_name));
        Some((format!("rename {dir}/{name} to {new_dir}/{new_name} {mode:?}"), Sync::Nothing))
    }

    fn lost_its_name(&mut self, ino: u64, node: Node) {
        if self.open.contains_key(&ino) {
            self.nameless.insert(ino, node);
        }
    }

    fn unlink(&mut self) -> Option<(String, Sync)> {
        let (dir, name, held) = self.any_place();
        let ino = held?;
        match self.tree.node(ino).names() {
            Some(names) if names.is_empty() => {
                self.vfs().rmdir(ROOT, Ino(dir), name).expect("removes");
            }
            Some(_) => return None,
            None => self.vfs().unlink(ROOT, Ino(dir), name).expect("unlinks"),
        }
        let gone = Arc::make_mut(&mut self.tree).remove(dir, name);
        if let Some(node) = gone.filter(|node| node.names().is_none()) {
            self.lost_its_name(ino, node);
        }
        Some((format!("unlink {dir}/{}", text(name)), Sync::Nothing))
    }

    fn link(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let (dir, name, held) = self.any_place();
        // An unlinked file gets no name again. A file that never had a name may get one.
        if held.is_some() || !self.tree.0.contains_key(&ino) {
            return None;
        }
        self.vfs().link(ROOT, Ino(ino), Ino(dir), name).expect("links");
        self.vfs().forget(Ino(ino), 1);
        Arc::make_mut(&mut self.tree).link(dir, name, ino, None);
        Some((format!("link {ino} as {dir}/{}", text(name)), Sync::Nothing))
    }

    /// Makes a file with `O_TMPFILE`, writes to it, and sometimes gives it a name.
    fn nameless(&mut self) -> Option<(String, Sync)> {
        let (dir, name, held) = self.any_place();
        let (entry, opened) = self.vfs().tmpfile(ROOT, Ino(dir), 0o600, READ_WRITE).expect("makes");
        let ino = entry.attr.ino.0;
        self.open.insert(ino, opened.handle);
        let length = 1 + self.rng.below(u64::from(BLOCK_SIZE)) as usize;
        let data = self.fresh_bytes(length);
        self.vfs().write(opened.handle, 0, &data).expect("writes");
        self.now_holds(ino, Vec::new());
        self.now_holds(ino, data);
        let node = Node::new(Kind::File, 0o600);
        let named = held.is_none() && self.rng.one_in(2);
        if named {
            self.vfs().link(ROOT, Ino(ino), Ino(dir), name).expect("links");
            self.vfs().forget(Ino(ino), 1);
            Arc::make_mut(&mut self.tree).link(dir, name, ino, Some(node));
        } else {
            self.nameless.insert(ino, node);
        }
        self.vfs().forget(Ino(ino), 1);
        Some((format!("tmpfile {ino} in {dir}, named: {named}"), Sync::Nothing))
    }

    fn attribute(&mut self) -> Option<(String, Sync)> {
        let all: Vec<u64> = self.tree.0.keys().copied().collect();
        let ino = all[self.rng.index(all.len())];
        let is_link = matches!(self.tree.node(ino).kind, Kind::Symlink(_));
        let (permissions, uid) = (self.rng.below(0o1000) as u32, self.rng.below(3) as u32);
        let change = SetAttr {
            permissions: (!is_link).then_some(permissions),
            uid: Some(uid),
            gid: Some(uid + 1),
            ..SetAttr::default()
        };
        self.vfs().setattr(ROOT, Ino(ino), None, &change).expect("changes");
        let node = Arc::make_mut(&mut self.tree).node_mut(ino);
        if !is_link {
            node.permissions = permissions;
        }
        (node.uid, node.gid) = (uid, uid + 1);
        Some((format!("chmod {ino} {permissions:o}, chown {uid}"), Sync::Nothing))
    }

    fn extended_attribute(&mut self) -> Option<(String, Sync)> {
        let takes =
            |(_, node): &(&u64, &Node)| matches!(node.kind, Kind::File | Kind::Directory(_));
        let all: Vec<u64> = self.tree.0.iter().filter(takes).map(|(ino, _)| *ino).collect();
        let ino = all[self.rng.index(all.len())];
        let name = [b"user." as &[u8], self.any_name()].concat();
        let there = self.tree.node(ino).xattrs.contains_key(&name);
        if there && self.rng.one_in(2) {
            self.vfs().removexattr(ROOT, Ino(ino), &name).expect("removes");
            Arc::make_mut(&mut self.tree).node_mut(ino).xattrs.remove(&name);
            return Some((format!("removexattr {ino} {}", text(&name)), Sync::Nothing));
        }
        let length = 1 + self.rng.below(600) as usize;
        let value = self.fresh_bytes(length);
        self.vfs().setxattr(ROOT, Ino(ino), &name, &value, XattrMode::Set, false).expect("sets");
        Arc::make_mut(&mut self.tree).node_mut(ino).xattrs.insert(name.clone(), value);
        Some((format!("setxattr {ino} {}", text(&name)), Sync::Nothing))
    }

    fn close(&mut self) -> Option<(String, Sync)> {
        let all: Vec<u64> = self.open.keys().copied().collect();
        if all.is_empty() {
            return None;
        }
        let ino = all[self.rng.index(all.len())];
        let handle = self.open.remove(&ino).expect("it is open");
        self.vfs().flush(handle).expect("flushes");
        self.vfs().release(handle);
        self.nameless.remove(&ino);
        Some((format!("close {ino}"), Sync::Nothing))
    }

    fn copy(&mut self) -> Option<(String, Sync)> {
        let (source, target) = (self.any_file()?, self.any_file()?);
        let (held, mut bytes) = (self.latest(source), self.latest(target));
        if source == target || held.is_empty() {
            return None;
        }
        let from = self.rng.below(held.len() as u64) as usize;
        let to = self.rng.below(SIZE_MAX / 2) as usize;
        let length = (held.len() - from).min(1 + self.rng.below(100_000) as usize);
        let (source_handle, target_handle) = (self.handle(source), self.handle(target));
        let copied = self
            .vfs()
            .copy_range((source_handle, from as u64), (target_handle, to as u64), length as u64)
            .expect("copies") as usize;
        if bytes.len() < to + copied {
            bytes.resize(to + copied, 0);
        }
        bytes[to..to + copied].copy_from_slice(&held[from..from + copied]);
        self.now_holds(target, bytes);
        Some((format!("copy {source} at {from} to {target} at {to}, {copied}"), Sync::Nothing))
    }

    fn read(&mut self) -> Option<(String, Sync)> {
        let ino = self.any_file()?;
        let handle = self.handle(ino);
        let expected = self.latest(ino);
        let mut found = vec![0; expected.len() + 1];
        let count = self.vfs().read(handle, 0, &mut found).expect("reads");
        found.truncate(count);
        assert!(found == expected, "seed {}: {ino} does not read what was written", self.seed);
        Some((format!("read {ino}"), Sync::Nothing))
    }

    /// Does what background threads would do in time.
    fn tend(&mut self) -> Option<(String, Sync)> {
        let stack = self.stack.as_ref().expect("a history runs on an open stack");
        let what = self.rng.below(4);
        match what {
            0 => stack.meta.tick(),
            1 => stack.meta.checkpoint().expect("checkpoints"),
            2 => {
                let at = self.rng.index(stack.stores.len());
                if let Some(store) = &stack.stores[at] {
                    store.checkpoint().expect("checkpoints");
                }
            }
            _ => {
                self.machine.clock.advance(Duration::from_secs(60));
                stack.tend();
            }
        }
        Some((format!("background work {what}"), Sync::Nothing))
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
