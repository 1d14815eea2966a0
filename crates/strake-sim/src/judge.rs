//! What was promised at a moment of a history, and whether a recovered file system keeps it.
//!
//! * **Names and attributes** are those after one of the operations, starting with the last
//!   operation that made them durable. They are never a mixture, because the metadata is one
//!   ordered log.
//! * **A file** has a size that it had since it was last made durable. Each of its blocks holds
//!   what the file held there after one of the operations since then, cut or extended with zeros to
//!   that size. Units of small synchronous writes come from the metadata's log, so each may be
//!   older than the rest of its block.
//! * **Times** of an inode: its modification time and its change time are each among those that it
//!   had since it was last made durable.
//! * **The checks** of metadata and NSDs find nothing. Every strip belongs to a file and lies
//!   within the file's size. The bytes counted as allocated are those that are stored.
//! * **Parity** matches the data: where all data strips exist, every choice of N strips decodes to
//!   the same bytes.

use crate::history::READ_WRITE;
use crate::machine::{BLOCK_SIZE, Stack};
use crate::recording::{Mark, Sync};
use crate::tree::{Contents, Kind, Node, Times, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use strake_client::vfs::{OpenFlags, Vfs};
use strake_nsd::BlockStore;
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::{FileData, Inode, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};
use strake_proto::{
    BlockIndex, Caller, FileType, FsId, Ino, ObjectId, ObjectLayout, StripIndex, Timestamp,
};

const ROOT: &Caller = &Caller::ROOT;

/// What a recovered file system holds.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Its names and attributes.
    pub tree: Tree,
    /// The bytes of its files.
    pub files: BTreeMap<u64, Vec<u8>>,
    /// The units that were in the metadata's log when the file system was opened, by inode.
    pub hardened: BTreeMap<u64, BTreeSet<u64>>,
    /// The modification and change time of each inode.
    pub times: BTreeMap<u64, (Timestamp, Timestamp)>,
    /// The faults that its own checks report, and everything that could not be read.
    pub faults: Vec<String>,
}

/// What a recovered file system may hold.
pub struct Promise {
    /// The names and attributes that it may have, the latest last.
    trees: Vec<Arc<Tree>>,
    /// The bytes that each file may hold, the latest last.
    files: BTreeMap<u64, Vec<Arc<Vec<u8>>>>,
    /// The times that each inode may have. An inode that is not here may have any times.
    times: BTreeMap<u64, Vec<(Timestamp, Timestamp)>>,
}

impl Promise {
    /// What is promised if the power goes right after the event at `cut`.
    pub fn at(marks: &[Mark], contents: &Contents, times: &Times, cut: u64) -> Promise {
        let begun = marks.iter().take_while(|mark| mark.begin < cut || mark.end <= cut).count();
        let done = |mark: &Mark| mark.end <= cut;
        let kept = |wanted: &dyn Fn(Sync) -> bool| {
            marks[..begun].iter().rposition(|mark| done(mark) && wanted(mark.sync)).unwrap_or(0)
        };
        let names = kept(&|sync| sync != Sync::Nothing);
        let mut trees: Vec<Arc<Tree>> = Vec::new();
        for mark in &marks[names..begun] {
            if trees.last().is_none_or(|last| !Arc::ptr_eq(last, &mark.tree)) {
                trees.push(Arc::clone(&mark.tree));
            }
        }
        let mut files = BTreeMap::new();
        for (ino, states) in contents {
            let floor = kept(&|sync| sync == Sync::All || sync == Sync::File(*ino));
            // The state at the floor is the last one that is not after it.
            let first = states.iter().rposition(|(op, _)| *op <= floor).unwrap_or(0);
            let states = states[first..].iter().filter(|(op, _)| *op < begun);
            files.insert(*ino, states.map(|(_, bytes)| Arc::clone(bytes)).collect());
        }
        let mut may_have = BTreeMap::new();
        for (ino, states) in times {
            let is_file = contents.contains_key(ino);
            let floor = kept(&|sync| match sync {
                Sync::All => true,
                Sync::File(synced) => synced == *ino || !is_file,
                Sync::Names => !is_file,
                Sync::Nothing => false,
            });
            let first = states.iter().rposition(|(op, _)| *op <= floor).unwrap_or(0);
            let states = states[first..].iter().filter(|(op, _)| *op < begun);
            may_have.insert(*ino, states.map(|(_, times)| *times).collect());
        }
        Promise { trees, files, times: may_have }
    }

    /// A promise of exactly what was found. It promises no times.
    pub fn exactly(found: &Found) -> Promise {
        let files = found.files.iter().map(|(ino, bytes)| (*ino, vec![Arc::new(bytes.clone())]));
        let trees = vec![Arc::new(found.tree.clone())];
        Promise { trees, files: files.collect(), times: BTreeMap::new() }
    }

    /// Promises that a file holds exactly these bytes from now on.
    pub fn add(&mut self, ino: u64, bytes: Vec<u8>) {
        self.files.insert(ino, vec![Arc::new(bytes)]);
    }
}

/// Checks what was found against a promise.
///
/// # Errors
/// One or more sentences about what is wrong.
pub fn judge(promise: &Promise, found: &Found) -> Result<(), String> {
    let (mut faults, none) = (found.faults.clone(), BTreeSet::new());
    if !promise.trees.iter().any(|tree| **tree == found.tree) {
        let last = promise.trees.last().expect("there is always a state");
        faults.push(format!(
            "names and attributes are none of {} that may be; from the latest they differ in {}",
            promise.trees.len(),
            last.difference(&found.tree)
        ));
    }
    for (ino, bytes) in &found.files {
        match promise.files.get(ino) {
            Some(states) if !states.is_empty() => {
                let hardened = found.hardened.get(ino).unwrap_or(&none);
                faults.extend(explain(*ino, bytes, states, hardened).err());
            }
            _ if bytes.is_empty() => {}
            _ => faults.push(format!("file {ino} was never written and has {}", bytes.len())),
        }
    }
    for (ino, (modified, changed)) in &found.times {
        let Some(states) = promise.times.get(ino).filter(|states| !states.is_empty()) else {
            continue;
        };
        let known = states.iter().any(|state| state.0 == *modified)
            && states.iter().any(|state| state.1 == *changed);
        if !known {
            let text = "modified and changed at";
            faults.push(format!("inode {ino}: {text} {modified:?}, {changed:?}, not {states:?}"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n  ")) }
}

/// Checks that the file may hold `bytes`.
fn explain(
    ino: u64,
    bytes: &[u8],
    states: &[Arc<Vec<u8>>],
    hardened: &BTreeSet<u64>,
) -> Result<(), String> {
    let sizes: BTreeSet<usize> = states.iter().map(|state| state.len()).collect();
    if !sizes.contains(&bytes.len()) {
        return Err(format!("file {ino} has {} bytes, it may have {sizes:?}", bytes.len()));
    }
    for (index, block) in bytes.chunks(BLOCK_SIZE as usize).enumerate() {
        let start = index * BLOCK_SIZE as usize;
        if !states.iter().any(|state| holds(state, start, block))
            && !is_hardened_over(start, block, states, hardened)
        {
            return Err(unexplained(ino, start, block, states));
        }
    }
    Ok(())
}

/// True if a block without its hardened units is what the file held at one time, and each hardened
/// unit is what the file held there at some time. A start writes hardened units into the block
/// again, and the block on the disks may be newer if nobody had synced it.
fn is_hardened_over(
    start: usize,
    block: &[u8],
    states: &[Arc<Vec<u8>>],
    hardened: &BTreeSet<u64>,
) -> bool {
    let units = || block.chunks(UNIT_BYTES).enumerate();
    let is_hardened = |index: usize| hardened.contains(&((start / UNIT_BYTES + index) as u64));
    let fits = |state: &Arc<Vec<u8>>, index, unit| holds(state, start + index * UNIT_BYTES, unit);
    states
        .iter()
        .any(|state| units().all(|(index, unit)| is_hardened(index) || fits(state, index, unit)))
        && units().all(|(index, unit)| {
            !is_hardened(index) || states.iter().any(|state| fits(state, index, unit))
        })
}

/// True if a state has `block` at `start`. Beyond its end a state has zeros.
fn holds(state: &[u8], start: usize, block: &[u8]) -> bool {
    let part = state.get(start..).unwrap_or(&[]);
    let part = &part[..part.len().min(block.len())];
    block[..part.len()] == *part && block[part.len()..].iter().all(|byte| *byte == 0)
}

fn unexplained(ino: u64, start: usize, block: &[u8], states: &[Arc<Vec<u8>>]) -> String {
    let known = |at: usize, byte: u8| {
        states.iter().any(|state| state.get(start + at).copied().unwrap_or(0) == byte)
    };
    let foreign = block.iter().enumerate().find(|(at, byte)| !known(*at, **byte));
    let zeros = block.iter().filter(|byte| **byte == 0).count();
    let kind = match foreign {
        Some((at, byte)) => format!("byte {byte} at {} was never there", start + at),
        None => "it is a mixture of several states".to_owned(),
    };
    let fits: Vec<String> = states
        .iter()
        .map(|state| {
            let differs = (0..block.len())
                .find(|at| state.get(start + at).copied().unwrap_or(0) != block[*at]);
            format!("{} long, differs at {:?}", state.len(), differs.map(|at| start + at))
        })
        .collect();
    format!(
        "file {ino}, block at {start} ({} bytes, {zeros} zero): {kind}; states: {}",
        block.len(),
        fits.join(" | ")
    )
}

/// Reads everything through the client, and runs the checks on everything below the client.
pub fn survey(stack: &Stack) -> Found {
    let mut found = Found { hardened: stack.hardened.clone(), ..Found::default() };
    walk(stack, &mut found, Ino::ROOT);
    check(stack, &mut found);
    found
}

fn walk(stack: &Stack, found: &mut Found, ino: Ino) {
    if found.tree.0.contains_key(&ino.0) {
        return;
    }
    let result = node_of(stack, found, ino);
    match result {
        Ok(node) => {
            let below: Vec<u64> =
                node.names().map(|names| names.values().copied().collect()).unwrap_or_default();
            found.tree.0.insert(ino.0, node);
            below.into_iter().for_each(|child| walk(stack, found, Ino(child)));
        }
        Err(error) => found.faults.push(format!("inode {ino}: {error}")),
    }
}

fn node_of(stack: &Stack, found: &mut Found, ino: Ino) -> strake_proto::Result<Node> {
    let vfs = &*stack.vfs;
    let attr = vfs.getattr(ino)?;
    let kind = match attr.file_type {
        FileType::Directory => Kind::Directory(names_of(vfs, ino)?),
        FileType::Symlink => Kind::Symlink(vfs.readlink(ino)?),
        FileType::Regular => {
            match read_all(vfs, ino, attr.size) {
                Ok(bytes) => drop(found.files.insert(ino.0, bytes)),
                Err(error) => found.faults.push(format!("file {ino}: {error}")),
            }
            Kind::File
        }
        _ => Kind::Fifo,
    };
    let mut xattrs = BTreeMap::new();
    if !matches!(kind, Kind::Symlink(_)) {
        for name in vfs.listxattr(ROOT, ino)? {
            let value = vfs.getxattr(ROOT, ino, &name)?;
            xattrs.insert(name, value);
        }
    }
    found.times.insert(ino.0, (attr.mtime, attr.ctime));
    let (uid, gid) = (attr.uid, attr.gid);
    Ok(Node { kind, permissions: attr.permissions, uid, gid, links: attr.links, xattrs })
}

fn names_of(vfs: &dyn Vfs, dir: Ino) -> strake_proto::Result<BTreeMap<Vec<u8>, u64>> {
    let mut names = BTreeMap::new();
    vfs.readdir(dir, 0, false, &mut |item| {
        if item.name != b"." && item.name != b".." {
            names.insert(item.name.clone(), item.ino.0);
        }
        true
    })?;
    Ok(names)
}

/// Reads a file's bytes as an application does.
fn read_all(vfs: &dyn Vfs, ino: Ino, size: u64) -> strake_proto::Result<Vec<u8>> {
    let handle = vfs.open(ROOT, ino, OpenFlags { write: false, ..READ_WRITE })?.handle;
    let mut bytes = vec![0; size as usize + 1];
    let result = vfs.read(handle, 0, &mut bytes);
    vfs.release(handle);
    bytes.truncate(result?);
    Ok(bytes)
}

/// Runs the checks of `fs check`, and some that `fs check` does not have yet.
fn check(stack: &Stack, found: &mut Found) {
    match stack.meta.query(&MetaQuery::Check) {
        Ok(MetaReply::Checked(reply)) => {
            found.faults.extend(reply.faults.iter().map(|fault| format!("metadata: {fault}")));
            if reply.inodes != found.tree.0.len() as u64 {
                let (has, named) = (reply.inodes, found.tree.0.len());
                found.faults.push(format!("{has} inodes, of which {named} have names"));
            }
        }
        other => found.faults.push(format!("metadata: {other:?}")),
    }
    for store in current(stack) {
        let request = NsdRequest::Check { data: true };
        match store.call(NsdContext::default(), &request, &[], &mut []) {
            Ok(NsdReply::Checked(reply)) => {
                let nsd = store.nsd();
                found.faults.extend(reply.faults.iter().map(|it| format!("NSD {nsd}: {it}")));
            }
            other => found.faults.push(format!("NSD {}: {other:?}", store.nsd())),
        }
    }
    if let Err(error) = check_strips(stack, found) {
        found.faults.push(format!("strips: {error}"));
    }
    let lost = stack.recovered.lost;
    if lost > 0 {
        found.faults.push(format!("the start says that {lost} bytes are lost"));
    }
    // Runs the product's own cross-check, as `fs check` does.
    match stack.manager.check_strips() {
        Ok(check) => found.faults.extend(check.faults.iter().map(|it| format!("check: {it}"))),
        Err(error) => found.faults.push(format!("check: {error}")),
    }
}

/// The block stores of the NSDs that are up to date.
fn current(stack: &Stack) -> impl Iterator<Item = &Arc<BlockStore>> {
    let views = stack.vfs.array().nsds();
    let readable = views.into_iter().filter(|view| view.state.availability.readable());
    readable.filter_map(|view| stack.stores[usize::from(view.slot.0)].as_ref())
}

/// Checks that each strip belongs to a file and lies within its size, and that the bytes counted as
/// allocated are those that are stored.
fn check_strips(stack: &Stack, found: &mut Found) -> strake_proto::Result<()> {
    let MetaReply::Inodes(inodes) =
        stack.meta.query(&MetaQuery::ScanInodes { after: Ino(0), limit: 4096 })?
    else {
        return Ok(());
    };
    let mut objects: BTreeMap<ObjectId, &Inode> = BTreeMap::new();
    for inode in &inodes {
        if let FileData::Objects(layouts) = &inode.data {
            objects.extend(layouts.iter().map(|layout| (layout.object, inode)));
        }
    }
    let mut stored: BTreeMap<ObjectId, BTreeMap<BlockIndex, u32>> = BTreeMap::new();
    for store in current(stack) {
        let request = NsdRequest::List {
            fs: FsId(1),
            object: ObjectId(0),
            block: BlockIndex(0),
            strip: StripIndex(0),
            until: ObjectId(u64::MAX),
            limit: 4096,
        };
        let reply = store.call(NsdContext::default(), &request, &[], &mut [])?;
        let NsdReply::Strips { entries, more } = reply else { continue };
        assert!(!more, "simulated file systems are small");
        for entry in entries {
            let (key, bytes) = (entry.key, entry.header.block_bytes);
            let within = objects
                .get(&key.object)
                .is_some_and(|inode| key.block.0 * u64::from(BLOCK_SIZE) < inode.attr.size);
            if !within {
                found.faults.push(format!("NSD {}: strip {key} is nobody's", store.nsd()));
            }
            stored.entry(key.object).or_default().insert(key.block, bytes);
        }
    }
    for (object, inode) in objects {
        let blocks = stored.remove(&object).unwrap_or_default();
        let whole = |bytes: &u32| u64::from(bytes.next_multiple_of(UNIT_BYTES as u32));
        let held: u64 = blocks.values().map(whole).sum();
        if held != inode.attr.allocated {
            let (ino, counted) = (inode.attr.ino, inode.attr.allocated);
            found.faults.push(format!("inode {ino}: {counted} allocated are counted, {held} are"));
        }
        let FileData::Objects(layouts) = &inode.data else { continue };
        for layout in layouts.iter().filter(|layout| layout.object == object) {
            for block in blocks.keys() {
                check_parity(stack, found, layout, *block)?;
            }
        }
    }
    Ok(())
}

/// Checks that all existing strips of a block have one version, and that parity matches the data.
fn check_parity(
    stack: &Stack,
    found: &mut Found,
    layout: &ObjectLayout,
    block: BlockIndex,
) -> strake_proto::Result<()> {
    let array = stack.vfs.array();
    let floor = array.floors.floor(layout.object, block);
    let mut health = array.io.examine(layout, block, floor)?;
    // Ignores the strips of a disk that fails in use: its store was taken out of the stack.
    health.wrong.retain(|at| {
        let slot = health.slots[usize::from(at.0)];
        stack.stores[usize::from(slot.0)].is_some()
    });
    let wrong = health.wrong;
    if !wrong.is_empty() {
        let object = layout.object;
        found.faults.push(format!("block {block} of object {object}: strips {wrong:?} are wrong"));
    }
    Ok(())
}
