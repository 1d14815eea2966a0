//! Names that a mount knows under the token of their directory: they are asked of nobody, and they
//! are never what another mount, or another thread, has changed.

use crate::StrakeVfs;
use crate::coherence_test::{World, client};
use crate::invalidate::{Dropping, Found, Invalidate, Outdated};
use crate::testing::HELD_UP_SIZE;
use crate::vfs::{DirItem, OpenFlags, SetAttr, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use strake_env::Rng;
use strake_env::sync::Mutex;
use strake_env::thread;
use strake_proto::meta::{MetaQuery, MetaReply, RenameMode};
use strake_proto::{Attr, Caller, ErrorKind, Ino, Result};
use strake_token::Mode;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;

fn make(vfs: &StrakeVfs, dir: Ino, name: &[u8]) -> Ino {
    let (entry, opened) = vfs.create(ROOT, dir, name, 0o644, RW, true).expect("created");
    vfs.release(opened.handle);
    entry.attr.ino
}

fn found(vfs: &StrakeVfs, dir: Ino, name: &[u8]) -> Option<Ino> {
    match vfs.lookup(ROOT, dir, name) {
        Ok(entry) => Some(entry.attr.ino),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{error}"),
    }
}

/// The names in a directory.
fn listed(vfs: &StrakeVfs, dir: Ino) -> BTreeMap<Vec<u8>, Ino> {
    let mut names = BTreeMap::new();
    let take = &mut |item: &DirItem| names.insert(item.name.clone(), item.ino).is_none();
    vfs.readdir(dir, 2, false, take).expect("listed");
    names
}

/// The root is in use as long as the mount is, although nobody looks it up.
#[test]
fn a_path_from_the_root_is_known_again() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let file = make(own, Ino::ROOT, b"there");
    assert_eq!(found(own, Ino::ROOT, b"there"), Some(file));
    let before = world.leader.heard();
    assert_eq!(found(own, Ino::ROOT, b"there"), Some(file));
    assert_eq!(
        own.getxattr(ROOT, file, b"security.capability"),
        Err(ErrorKind::NoAttribute.into())
    );
    assert_eq!(world.leader.heard(), before);
    world.end();
}

/// While a cluster is upgraded, a node of before may lead.
#[test]
fn a_leader_of_an_older_version_is_asked_for_the_name_alone() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let files = [&b"a"[..], b"c"].map(|name| make(&world.mounts[1], Ino::ROOT, name));
    for older in [true, false] {
        world.leader.set_older(older);
        // The other mount takes the directory, so nothing is known of it.
        make(&world.mounts[1], Ino::ROOT, format!("of {older}").as_bytes());
        let before = world.leader.lookups();
        let found = [&b"a"[..], b"b", b"bb", b"c"].map(|name| found(own, Ino::ROOT, name));
        assert_eq!(found, [Some(files[0]), None, None, Some(files[1])]);
        let asked = world.leader.lookups() - before;
        assert_eq!(asked, if older { 8 } else { 2 }, "older: {older}");
    }
    world.end();
}

/// A kernel that has not taken in the answer to a lookup when it is first told of the inode.
#[derive(Default)]
struct LateKernel {
    /// It knows nothing so often.
    unknown: AtomicU32,
    told: Mutex<Vec<Outdated>>,
}

impl Invalidate for LateKernel {
    fn invalidate(&self, what: Outdated) -> Result<Dropping> {
        self.told.lock().push(what.clone());
        let (dropping, dropped) = Dropping::begin(what);
        let knows = |left: u32| left.checked_sub(1);
        let found = match self.unknown.fetch_update(Ordering::AcqRel, Ordering::Acquire, knows) {
            Ok(_) => Found::Nothing,
            Err(_) => Found::Something,
        };
        dropped.tell(Ok(found));
        Ok(dropping)
    }

    fn can_drop_all_names(&self) -> bool {
        true
    }
}

#[test]
fn a_kernel_that_will_know_an_inode_is_told_until_it_does() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let kernel = Arc::new(LateKernel::default());
    own.attach_adapter(Arc::clone(&kernel) as Arc<dyn Invalidate>);
    let file = make(other, Ino::ROOT, b"file");
    let changes = |permissions| {
        let wanted = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
        other.setattr(ROOT, file, None, &wanted).expect("changed");
        let told = std::mem::take(&mut *kernel.told.lock());
        let ino = |what: &Outdated| match what {
            Outdated::Attributes(ino) | Outdated::Contents { ino, .. } => *ino,
            what => panic!("{what}"),
        };
        told.iter().filter(|what| ino(what) == file).count()
    };
    assert_eq!(found(own, Ino::ROOT, b"file"), Some(file));
    kernel.told.lock().clear();
    kernel.unknown.store(2, Ordering::Release);
    assert_eq!(changes(0o600), 3, "the lookup was answered, so the kernel will know it");

    // The kernel has forgotten it, and said so.
    own.getattr(file).expect("there");
    own.forget(file, 1);
    kernel.unknown.store(u32::MAX, Ordering::Release);
    assert_eq!(changes(0o644), 1);
    world.end();
}

/// A program opens a file with `O_CREAT` that is there. It needs the exclusive token, and another
/// mount has asked for that before. The thread that gives up the token under which the name was
/// found waits until the kernel knows the file. The kernel must not learn that with the answer to
/// the open.
#[test]
fn a_file_that_is_opened_by_name_is_given_up_meanwhile() {
    let world = World::new("1", 1);
    let (own, other, third) = (&world.mounts[0], &world.mounts[1], &world.mounts[2]);
    let kernel = Arc::new(LateKernel::default());
    kernel.unknown.store(u32::MAX, Ordering::Release);
    own.attach_adapter(Arc::clone(&kernel) as Arc<dyn Invalidate>);
    let (entry, opened) = third.create(ROOT, Ino::ROOT, b"file", 0o644, RW, true).expect("created");
    third.write(opened.handle, HELD_UP_SIZE - 1, b"x").expect("written");
    third.release(opened.handle);
    let file = entry.attr.ino;
    world.leader.shut_gate();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (_, opened) =
                own.create(ROOT, Ino::ROOT, b"file", 0o644, RW, false).expect("opened");
            kernel.unknown.store(0, Ordering::Release);
            own.release(opened.handle);
        });
        // The third mount gives the file up, so that it can be found.
        world.leader.await_gate_reached();
        let changing = scope.spawn(|| {
            let mode = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
            other.setattr(ROOT, file, None, &mode).expect("changed");
        });
        let waits = || world.leader.service().waits();
        while waits().iter().all(|wait| wait.client != client(1)) && !changing.is_finished() {
            thread::yield_now();
        }
        world.leader.open_gate();
    });
    // As long as it does not know the file, it is told again each 100 µs.
    let told = kernel.told.lock().len();
    assert!(told < 1000, "the kernel was told {told} times of a file that it could not know");
    assert_eq!(third.getattr(file).expect("there").permissions, 0o600);
    world.end();
}

/// The kernel looks a name up, and names the inode when it opens the file. Another mount replaces
/// the file in between.
#[test]
fn a_file_that_was_just_found_is_there_for_a_moment() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let (entry, opened) = other.create(ROOT, Ino::ROOT, b"file", 0o644, RW, true).expect("created");
    other.write(opened.handle, 0, b"before").expect("written");
    other.release(opened.handle);
    let file = entry.attr.ino;
    let before = world.inodes();
    assert_eq!(found(own, Ino::ROOT, b"file"), Some(file));
    make(other, Ino::ROOT, b"new");
    let (new, name) = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"file"[..]));
    other.rename(ROOT, new, name, RenameMode::Replace).expect("replaced");

    assert_eq!(own.getattr(file).expect("there").links, 0);
    let handle = own.open(ROOT, file, OpenFlags { write: false, ..RW }).expect("opened").handle;
    let mut bytes = [0; 9];
    assert_eq!(own.read(handle, 0, &mut bytes), Ok(6));
    assert_eq!(&bytes[..6], b"before");
    own.release(handle);
    own.forget(file, 1);
    world.await_inodes(before, "nobody has it open");
    assert_eq!(own.getattr(file).expect_err("gone").kind(), ErrorKind::Stale);

    // Nobody opens this one, and it goes all the same.
    let unused = make(other, Ino::ROOT, b"unused");
    assert_eq!(found(own, Ino::ROOT, b"unused"), Some(unused));
    other.unlink(ROOT, Ino::ROOT, b"unused").expect("removed");
    own.getattr(unused).expect("there for a moment");
    world.await_inodes(before, "nobody has it open");
    world.end();
}

#[test]
fn a_directory_that_another_mount_has_removed_has_no_names() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = own.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    other.rmdir(ROOT, Ino::ROOT, b"dir").expect("removed");
    let gone = Err(ErrorKind::NotFound);
    let kind = |error: strake_proto::Error| error.kind();
    assert_eq!(own.mkdir(ROOT, dir, b"a", 0o755).map(drop).map_err(kind), gone);
    assert_eq!(own.create(ROOT, dir, b"a", 0o644, RW, false).map(drop).map_err(kind), gone);
    assert_eq!(own.lookup(ROOT, dir, b"a").map(drop).map_err(kind), gone);
    assert_eq!(own.unlink(ROOT, dir, b"a").map_err(kind), gone);
    let (from, to) = ((dir, &b"a"[..]), (Ino::ROOT, &b"b"[..]));
    assert_eq!(own.rename(ROOT, from, to, RenameMode::Replace).map(drop).map_err(kind), gone);
    world.end();
}

/// The kernel keeps names while their directory's token is held, and drops them before another
/// mount changes one. Only what was shown since is dropped again.
#[test]
fn names_that_the_kernel_keeps_are_dropped_before_others_change_them() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let kernel = Arc::new(LateKernel::default());
    own.attach_adapter(Arc::clone(&kernel) as Arc<dyn Invalidate>);
    let [dir, second] = [&b"dir"[..], b"second"]
        .map(|name| own.mkdir(ROOT, Ino::ROOT, name, 0o755).expect("made").attr.ino);
    make(own, second, b"one");
    let is_kept = |dir, name: &[u8]| {
        let mark = own.show_name(dir);
        found(own, dir, name);
        own.name_holds(dir, mark) > Some(Duration::ZERO)
    };
    let orders = || {
        let told = std::mem::take(&mut *kernel.told.lock());
        told.iter().filter(|what| **what == Outdated::AllNames).count()
    };
    orders();
    assert!(is_kept(dir, b"absent") && is_kept(second, b"one"));
    let before = own.show_name(dir);
    assert_eq!((found(other, dir, b"absent"), orders()), (None, 0), "both may look");
    make(other, dir, b"absent");
    assert_eq!(orders(), 1, "before the name was there");
    assert_eq!(own.name_holds(dir, before), Some(Duration::ZERO), "an answer that is too late");
    assert!(!is_kept(dir, b"absent"), "others use this directory");
    make(other, second, b"two");
    assert_eq!(orders(), 0, "the kernel has dropped all names");
    assert!(is_kept(second, b"two"));
    // The other directory gets what the kernel knows of the name.
    own.rename(ROOT, (second, b"two"), (dir, b"two"), RenameMode::Replace).expect("renamed");
    orders();
    other.unlink(ROOT, dir, b"two").expect("removed");
    assert_eq!(orders(), 1);
    world.end();
}

#[test]
fn names_under_a_token_are_asked_of_nobody() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = own.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let file = make(own, dir, b"there");
    let before = world.leader.heard();
    assert_eq!(found(own, dir, b"there"), Some(file));
    assert_eq!(found(own, dir, b"absent"), None, "this mount made the directory");
    assert_eq!(world.leader.heard(), before);

    // Another mount makes a name, so that this one gives the directory up.
    let theirs = make(other, dir, b"absent");
    assert_eq!(found(own, dir, b"absent"), Some(theirs));
    assert_eq!(found(own, dir, b"none"), None);
    let before = world.leader.heard();
    assert_eq!(found(own, dir, b"absent"), Some(theirs));
    assert_eq!(found(own, dir, b"none"), None, "learnt");
    assert_eq!(world.leader.heard(), before);

    other.rename(ROOT, (dir, b"absent"), (dir, b"none"), RenameMode::Replace).expect("renamed");
    assert_eq!((found(own, dir, b"absent"), found(own, dir, b"none")), (None, Some(theirs)));
    other.unlink(ROOT, dir, b"none").expect("removed");
    assert_eq!((found(own, dir, b"none"), found(own, dir, b"there")), (None, Some(file)));
    world.end();
}

#[test]
fn programs_that_count_upwards_ask_for_few_names() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = other.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    make(other, dir, b"theirs5");
    assert_eq!(found(own, Ino::ROOT, b"dir"), Some(dir), "its kernel has the directory now");
    let before = world.leader.lookups();
    for at in 0..300 {
        let name = format!("own{at}").into_bytes();
        assert_eq!(found(own, dir, &name), None);
        make(own, dir, &name);
    }
    let asked = world.leader.lookups() - before;
    assert!(asked < 10, "{asked} questions for 300 names");
    // Names that the other mount makes in a gap that this one knows, and removes again.
    assert_eq!(found(own, dir, b"own5000"), None);
    let theirs = make(other, dir, b"own5000");
    assert_eq!(found(own, dir, b"own5000"), Some(theirs));
    other.unlink(ROOT, dir, b"own5000").expect("removed");
    assert_eq!(found(own, dir, b"own5000"), None);
    world.end();
}

/// A program that makes files looks at each name first. With a shared token for that, each turn
/// would take the directory twice.
#[test]
fn a_mount_that_changes_names_in_turns_takes_the_directory_once() {
    let world = World::new("1", 1);
    let dir = world.mounts[0].mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let held = |at: usize| world.tokens[at].held(dir);
    // A machine that is busy may take too long between a change and the next look.
    let taken_whole = |at: usize| {
        let own = &world.mounts[at];
        (0..1000).any(|number| {
            make(own, dir, format!("{at}-{number}").as_bytes());
            make(&world.mounts[1 - at], dir, format!("other{at}-{number}").as_bytes());
            assert_eq!(held(at), None, "the other mount has it");
            assert_eq!(found(own, dir, b"new"), None);
            held(at) == Some(Mode::Exclusive)
        })
    };
    assert!(taken_whole(0) && taken_whole(1));
    assert_eq!(found(&world.mounts[2], dir, b"new"), None);
    assert_eq!(held(2), Some(Mode::Shared), "it only looks");
    world.end();
}

/// Another mount that removes files which this one has looked at does not wait for what this one
/// has changed elsewhere.
#[test]
fn only_what_was_changed_under_a_token_is_made_durable_before_it_goes() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = own.mkdir(ROOT, Ino::ROOT, b"own", 0o755).expect("made").attr.ino;
    let theirs = make(other, Ino::ROOT, b"theirs");
    let looked_up = make(other, Ino::ROOT, b"looked up");
    own.getattr(theirs).expect("there");
    assert_eq!(found(own, Ino::ROOT, b"looked up"), Some(looked_up));
    let mine = make(own, dir, b"mine");
    let syncs = |chmod: &StrakeVfs, ino: Ino| {
        let before = world.leader.syncs();
        let mode = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
        chmod.setattr(ROOT, ino, None, &mode).expect("changed");
        world.leader.syncs() - before
    };
    for ino in [theirs, looked_up] {
        assert_eq!(world.tokens[0].held(ino), Some(Mode::Shared));
        assert_eq!(syncs(other, ino), 0, "it was only looked at");
    }
    assert_eq!(syncs(other, mine), 1, "it was made here");
    // Nothing but the metadata knows of this one.
    make(own, dir, b"more");
    own.forget(dir, 1);
    let before = world.leader.syncs();
    make(other, dir, b"beside");
    assert_eq!(world.leader.syncs() - before, 1, "a name was made here");
    world.end();
}

#[test]
fn listings_under_a_token_are_asked_of_nobody() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = own.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    // More than one message brings.
    let names: Vec<Vec<u8>> = (0..1000).map(|at| format!("{at:04}").into_bytes()).collect();
    let inos: Vec<Ino> = names.iter().map(|name| make(own, dir, name)).collect();
    let mut wanted: BTreeMap<_, _> = names.iter().cloned().zip(inos).collect();
    assert_eq!(listed(own, dir), wanted);
    let asks = |mount: &StrakeVfs, wanted: &BTreeMap<_, _>| {
        // Access times that listings move are told at any time.
        let before = world.leader.listings();
        assert_eq!(listed(mount, dir), *wanted);
        world.leader.listings() > before
    };
    assert!(!asks(own, &wanted), "known");

    own.unlink(ROOT, dir, b"0500").expect("removed");
    wanted.remove(&b"0500"[..]);
    assert!(asks(own, &wanted), "its own change");
    assert!(!asks(own, &wanted));
    assert_eq!(found(other, Ino::ROOT, b"dir"), Some(dir), "its kernel has the directory now");
    assert!(asks(other, &wanted));
    asks(own, &wanted);
    assert!(!asks(other, &wanted) && !asks(own, &wanted), "both hold the token, shared");
    wanted.insert(b"new".to_vec(), make(other, dir, b"new"));
    assert!(asks(own, &wanted), "another one's change");
    assert!(!asks(own, &wanted));
    world.end();
}

#[test]
fn own_changes_are_known_and_names_that_cannot_be_are_refused() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dir = own.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let (one, two) = (make(own, dir, b"one"), make(own, dir, b"two"));
    let places = |from, to| ((dir, from), (dir, to));
    let (from, to) = places(&b"one"[..], &b"two"[..]);
    own.rename(ROOT, from, to, RenameMode::Exchange).expect("exchanged");
    assert_eq!((found(own, dir, b"one"), found(own, dir, b"two")), (Some(two), Some(one)));
    own.link(ROOT, one, dir, b"link").expect("linked");
    // Two names of one inode: nothing happens.
    own.rename(ROOT, (dir, b"link"), to, RenameMode::Replace).expect("nothing to do");
    assert_eq!((found(own, dir, b"link"), found(own, dir, b"two")), (Some(one), Some(one)));
    own.rename(ROOT, from, to, RenameMode::Replace).expect("replaced");
    assert_eq!((found(own, dir, b"one"), found(own, dir, b"two")), (None, Some(two)));
    let long = own.lookup(ROOT, dir, &[b'x'; 300]).expect_err("too long");
    assert_eq!(long.kind(), ErrorKind::NameTooLong);
    own.unlink(ROOT, dir, b"two").expect("removed");
    assert_eq!(found(own, dir, b"two"), None);
    world.end();
}

/// One step of a thread: it changes, or looks at, one of few names.
fn step(vfs: &StrakeVfs, dir: Ino, rng: &mut Rng) {
    let names = [rng.below(3), rng.below(3)].map(|at| format!("n{at}").into_bytes());
    let done = match rng.below(6) {
        0 | 1 => vfs
            .create(ROOT, dir, &names[0], 0o644, RW, true)
            .map(|(_, opened)| vfs.release(opened.handle)),
        2 => vfs.unlink(ROOT, dir, &names[0]),
        3 => vfs.rename(ROOT, (dir, &names[0]), (dir, &names[1]), RenameMode::Replace).map(drop),
        4 => {
            listed(vfs, dir);
            Ok(())
        }
        _ => vfs.lookup(ROOT, dir, &names[0]).map(drop),
    };
    if let Err(error) = done {
        assert!(matches!(error.kind(), ErrorKind::Exists | ErrorKind::NotFound), "{error}");
    }
}

/// The metadata's times, size and links of a directory follow from each change of its names, so
/// that nobody is asked.
#[test]
fn a_directory_is_known_after_changes_of_its_names() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dir = own.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let file = make(own, dir, b"file");
    own.getattr(dir).expect("there");
    let is_known = |change: &dyn Fn()| {
        change();
        let before = world.leader.heard();
        let seen = own.getattr(dir).expect("there");
        let is_known = world.leader.heard() == before;
        let told = own.array().meta.query_inode(&MetaQuery::GetInode { ino: dir });
        assert_eq!(seen, told.expect("there").attr);
        is_known
    };
    assert!(is_known(&|| {
        make(own, dir, b"other");
    }));
    assert!(is_known(&|| {
        own.mkdir(ROOT, dir, b"below", 0o755).expect("made");
    }));
    assert!(is_known(&|| {
        own.link(ROOT, file, dir, b"link").expect("linked");
    }));
    assert!(is_known(&|| own.unlink(ROOT, dir, b"link").expect("removed")));
    assert!(is_known(&|| own.rmdir(ROOT, dir, b"below").expect("removed")));
    let (from, to) = ((dir, &b"file"[..]), (dir, &b"other"[..]));
    // Whether something is replaced is not looked at here.
    assert!(!is_known(&|| own
        .rename(ROOT, from, to, RenameMode::Replace)
        .map(drop)
        .expect("renamed")));
    assert!(!is_known(&|| drop(own.rmdir(ROOT, dir, b"other").expect_err("a file"))));
    world.end();
}

#[test]
fn threads_of_several_mounts_agree_on_the_names_that_are_left() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("SEED={seed}");
    let world = World::new("1", 1);
    let dir = world.mounts[0].mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    for round in 0..40 {
        // In half of the rounds only one mount works, and so keeps the token for long.
        let mounts = if round % 2 == 0 { &world.mounts[..1] } else { &world.mounts[..] };
        thread::scope(|scope| {
            for (at, mount) in mounts.iter().flat_map(|mount| [mount, mount]).enumerate() {
                let mut rng = Rng::new(seed ^ (round << 8) ^ at as u64);
                scope.spawn(move || (0..30).for_each(|_| step(mount, dir, &mut rng)));
            }
        });
        for mount in &world.mounts {
            let seen = mount.getattr(dir).expect("there");
            let told = mount.array().meta.query_inode(&MetaQuery::GetInode { ino: dir });
            let told = told.expect("there").attr;
            // Access times that listings move are told later.
            assert_eq!(Attr { atime: told.atime, ..seen }, told);
            // The mount keeps the token that it holds, and nobody else works.
            let names = listed(mount, dir);
            let ask = MetaQuery::ReadDir { dir, after: 0, limit: 9, with_inodes: false };
            let told = match mount.array().meta.query(&ask).expect("told") {
                MetaReply::Entries { entries, .. } => entries,
                other => panic!("{other:?}"),
            };
            let told = told.into_iter().map(|entry| (entry.name, entry.ino));
            assert_eq!(names, told.collect(), "round {round}");
            for at in 0..3 {
                let name = format!("n{at}").into_bytes();
                let ino = names.get(&name).copied();
                assert_eq!(found(mount, dir, &name), ino, "round {round}, name {at}");
            }
        }
    }
    world.end();
}
