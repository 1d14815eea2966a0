//! Names that a mount makes and removes without waiting for the metadata: what it tells programs is
//! what the metadata comes to, whoever else changes names at the same time.

use crate::StrakeVfs;
use crate::coherence_test::World;
use crate::permissions::ACL_DEFAULT;
use crate::vfs::{OpenFlags, SetAttr, SetTime, Vfs};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_env::rng::test_seeds;
use strake_env::sync::Mutex;
use strake_env::{Clock, RealClock, Rng, thread};
use strake_proto::acl::{Acl, AclEntry, AclTag};
use strake_proto::meta::{MetaOp, MetaQuery, RenameMode, XattrMode};
use strake_proto::nsd::NsdRequest;
use strake_proto::{Attr, Caller, ErrorKind, FileType, Ino, Result, StripKey, Timestamp};
use strake_testing::memory_nsd::Moment;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const NAMES: u64 = 3;

fn make(vfs: &StrakeVfs, dir: Ino, name: &[u8]) -> Result<Ino> {
    // As a kernel does.
    if let Ok(entry) = vfs.lookup(ROOT, dir, name) {
        vfs.forget(entry.attr.ino, 1);
    }
    let (entry, opened) = vfs.create(ROOT, dir, name, 0o644, RW, true)?;
    vfs.release(opened.handle);
    Ok(entry.attr.ino)
}

/// Makes a file, or finds it, and writes more than an inode takes.
fn put(vfs: &StrakeVfs, dir: Ino, name: &[u8]) -> Result<()> {
    match make(vfs, dir, name) {
        Err(error) if error.kind() != ErrorKind::Exists => return Err(error),
        _ => {}
    }
    let ino = vfs.lookup(ROOT, dir, name)?.attr.ino;
    let written = vfs.open(ROOT, ino, RW).and_then(|opened| {
        let written = vfs.write(opened.handle, 0, &CONTENT);
        vfs.release(opened.handle);
        written
    });
    vfs.forget(ino, 1);
    written.map(drop)
}

const CONTENT: [u8; 9000] = [7; 9000];

fn directory(vfs: &StrakeVfs, parent: Ino, name: &[u8]) -> Ino {
    let _ = vfs.lookup(ROOT, parent, name);
    vfs.mkdir(ROOT, parent, name, 0o755).expect("made").attr.ino
}

/// How many changes the metadata was told later, so that a test that tells none is seen.
fn told_later(world: &World) -> u64 {
    world.leader.told_later.load(Ordering::SeqCst)
}

/// One operation of a thread, in one of two directories or in one that is made and removed.
fn step(vfs: &StrakeVfs, dirs: [Ino; 2], rng: &mut Rng) {
    let name = |rng: &mut Rng| format!("n{}", rng.below(NAMES)).into_bytes();
    let (one, other, mut dir) = (name(rng), name(rng), dirs[rng.index(2)]);
    let below = vfs.lookup(ROOT, dirs[0], b"below").map(|entry| entry.attr.ino);
    if let Ok(below) = below {
        vfs.forget(below, 1);
        dir = if rng.one_in(3) { below } else { dir };
    }
    let done = match rng.below(11) {
        0 | 1 => make(vfs, dir, &one).map(drop),
        2 => put(vfs, dir, &one),
        3 | 4 => vfs.unlink(ROOT, dir, &one),
        5 => vfs.lookup(ROOT, dir, &one).and_then(|entry| {
            let linked = vfs.link(ROOT, entry.attr.ino, dirs[rng.index(2)], &other);
            linked.iter().for_each(|_| vfs.forget(entry.attr.ino, 1));
            vfs.forget(entry.attr.ino, 1);
            linked.map(drop)
        }),
        6 => vfs.rename(ROOT, (dir, &one), (dirs[1], &other), RenameMode::Replace).map(drop),
        7 => vfs.rmdir(ROOT, dirs[0], b"below"),
        8 | 9 => {
            let permissions = Some(0o755 + u32::try_from(rng.below(3)).expect("small"));
            vfs.setattr(ROOT, dir, None, &SetAttr { permissions, ..touched(rng.below(9)) })
                .map(drop)
        }
        _ => {
            let _ = vfs.lookup(ROOT, dirs[0], b"below");
            vfs.mkdir(ROOT, dirs[0], b"below", 0o755).map(drop)
        }
    };
    if let Err(error) = done {
        let kinds = [ErrorKind::Exists, ErrorKind::NotFound, ErrorKind::NotEmpty, ErrorKind::Stale];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

#[test]
fn no_strip_is_sent_before_the_metadata_has_its_object_durably() {
    let world = World::new("2x", 3);
    let (sent, objects) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(BTreeSet::new())));
    for nsd in &world.rig.nsds {
        let (meta, sent) = (Arc::clone(&world.rig.meta), Arc::clone(&sent));
        let objects = Arc::clone(&objects);
        nsd.set_watch(Some(Arc::new(move |moment, request| {
            let keys: Vec<StripKey> = match request {
                NsdRequest::Write { key, .. } => vec![*key],
                NsdRequest::WriteMany { strips, .. } => strips.iter().map(|it| it.key).collect(),
                _ => Vec::new(),
            };
            for key in keys.iter().filter(|_| moment == Moment::Before) {
                let is_its = |op: &MetaOp| {
                    matches!(op, MetaOp::NewObjectAs { layout, .. } if layout.object == key.object)
                };
                assert!(meta.is_durable(is_its), "a strip of {} is sent", key.object);
                objects.lock().insert(key.object);
                sent.fetch_add(1, Ordering::SeqCst);
            }
        })));
    }
    let mount = &world.mounts[0];
    for at in 0..100 {
        let name = format!("f{at}").into_bytes();
        put(mount, Ino::ROOT, &name).expect("written");
        // By way of the threads that write behind, of a sync of one file, and of a sync of all.
        match at % 10 {
            3 => mount.mount.kick(),
            7 => mount.sync().map(drop).expect("synced"),
            _ => {}
        }
    }
    mount.sync().expect("synced");
    assert!(objects.lock().len() > 90, "files had their objects by asking for them");
    assert!(sent.load(Ordering::SeqCst) >= 200);
    world.rig.nsds.iter().for_each(|nsd| nsd.set_watch(None));
    world.end();
}

/// Each time it gets another object, and an object that it never named is dropped.
#[test]
fn a_file_that_is_written_and_cut_again_and_again_loses_nothing() {
    let world = World::new("2x", 3);
    let mount = &world.mounts[0];
    put(mount, Ino::ROOT, b"f").expect("written");
    let ino = mount.lookup(ROOT, Ino::ROOT, b"f").expect("found").attr.ino;
    let handle = mount.open(ROOT, ino, RW).expect("opened").handle;
    for round in 0..60 {
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        mount.setattr(ROOT, ino, Some(handle), &cut).expect("cut");
        assert_eq!(mount.write(handle, 0, &CONTENT).expect("written"), CONTENT.len());
        if round == 45 {
            mount.fsync(handle).expect("synced");
        }
    }
    mount.sync().expect("synced");
    assert_eq!(mount.array().meta.lost(), 0);
    let mut bytes = [0; 2 * CONTENT.len()];
    assert_eq!(mount.read(handle, 0, &mut bytes).expect("read"), CONTENT.len());
    assert!(bytes[..CONTENT.len()] == CONTENT);
    mount.release(handle);
    world.end();
}

/// A modification time long ago, as an archive has it.
fn touched(seconds: u64) -> SetAttr {
    let at = Timestamp { seconds: seconds.cast_signed(), nanos: 0 };
    SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() }
}

#[test]
fn what_threads_of_several_mounts_were_told_is_what_the_metadata_comes_to() {
    let mut later = 0;
    for seed in test_seeds(0, 6) {
        println!("seed {seed}");
        let world = World::new("1", 1);
        let dirs = [&b"one"[..], b"two"].map(|name| directory(&world.mounts[0], Ino::ROOT, name));
        for round in 0..30 {
            // In most rounds one mount works, and so keeps its tokens for long.
            let mounts = if round % 3 > 0 { &world.mounts[..1] } else { &world.mounts[..2] };
            thread::scope(|scope| {
                for (at, mount) in mounts.iter().flat_map(|it| [it, it, it]).enumerate() {
                    let mut rng = Rng::new(seed << 16 ^ round << 8 ^ at as u64);
                    scope.spawn(move || (0..40).for_each(|_| step(mount, dirs, &mut rng)));
                }
            });
            for mount in mounts {
                mount.sync().unwrap_or_else(|error| panic!("round {round}: {error}"));
                // An operation may have got the error, and ignored it.
                assert_eq!(mount.array().meta.lost(), 0, "round {round}");
                dirs.iter().for_each(|dir| agrees(mount, *dir));
            }
        }
        later += told_later(&world);
        world.end();
    }
    assert!(later > 500, "{later} changes were told later");
}

/// Checks that a mount knows of a directory and its files what the metadata has.
fn agrees(mount: &StrakeVfs, dir: Ino) {
    let told = |ino| mount.array().meta.query_inode(&MetaQuery::GetInode { ino });
    let seen = mount.getattr(dir).expect("there");
    assert_eq!(seen, Attr { atime: seen.atime, ..told(dir).expect("there").attr });
    for at in 0..NAMES {
        let name = format!("n{at}").into_bytes();
        let asked = MetaQuery::Lookup { parent: dir, name: name.clone() };
        let told = mount.array().meta.query_inode(&asked).map(|inode| inode.attr);
        let seen = mount.lookup(ROOT, dir, &name).map(|entry| entry.attr);
        match (&seen, &told) {
            (Ok(seen), Ok(told)) => {
                mount.forget(seen.ino, 1);
                assert_eq!((seen.ino, seen.links), (told.ino, told.links));
            }
            (Err(seen), Err(told)) => assert_eq!(seen.kind(), told.kind()),
            _ => panic!("{seen:?}, but {told:?}"),
        }
    }
}

/// Attributes of a directory may be told later. The change of a name comes after them, and has its
/// own time.
#[test]
fn what_was_set_of_a_directory_is_told_before_its_names_change() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dirs = [&b"one"[..], b"two"].map(|name| directory(own, Ino::ROOT, name));
    let file = make(own, dirs[0], b"file").expect("made");
    let made = |dir, name: &[u8]| make(own, dir, name).map(drop);
    let changes: [&dyn Fn() -> Result<()>; 7] = [
        &|| made(dirs[0], b"n0").and(made(dirs[1], b"n0")),
        &|| dirs.iter().try_for_each(|dir| own.mkdir(ROOT, *dir, b"below", 0o755).map(drop)),
        &|| dirs.iter().try_for_each(|dir| own.rmdir(ROOT, *dir, b"below")),
        &|| dirs.iter().try_for_each(|dir| own.link(ROOT, file, *dir, b"link").map(drop)),
        &|| dirs.iter().try_for_each(|dir| own.unlink(ROOT, *dir, b"link")),
        &|| own.rename(ROOT, (dirs[0], b"n0"), (dirs[1], b"n1"), RenameMode::Replace).map(drop),
        &|| own.rename(ROOT, (dirs[0], b"file"), (dirs[1], b"n1"), RenameMode::Exchange).map(drop),
    ];
    let mut kept = 0;
    for (at, change) in changes.iter().enumerate() {
        for dir in dirs {
            own.setattr(ROOT, dir, None, &touched(at as u64)).expect("changed");
        }
        kept += own.mount.untold.all().len();
        change().unwrap_or_else(|error| panic!("change {at}: {error}"));
        own.sync().expect("nothing is lost");
        for dir in dirs {
            assert!(own.getattr(dir).expect("there").mtime.seconds > 1000, "change {at}");
            agrees(own, dir);
        }
    }
    assert!(kept > 0, "all were told at once");
    // A file without a name inherits, too.
    let setgid = SetAttr { permissions: Some(0o2775), gid: Some(9), ..SetAttr::default() };
    own.setattr(ROOT, dirs[0], None, &setgid).expect("changed");
    let (entry, opened) = own.tmpfile(ROOT, dirs[0], 0o600, RW).expect("made");
    assert_eq!(entry.attr.gid, 9);
    own.release(opened.handle);
    world.end();
}

/// Of several threads that make one file, each exclusively, one has made it.
#[test]
fn a_name_is_made_once() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dir = directory(own, Ino::ROOT, b"dir");
    for round in 0..200 {
        let (name, made) = (format!("n{round}").into_bytes(), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    made.fetch_add(u64::from(make(own, dir, &name).is_ok()), Ordering::SeqCst)
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
    own.sync().expect("all were applied");
    world.end();
}

/// Holds up the answer to `first` while `second` goes on, as far as it can.
fn cross(world: &World, first: impl Fn() + Sync, second: impl Fn() + Sync) {
    world.leader.shut_reserving();
    thread::scope(|scope| {
        scope.spawn(&first);
        world.leader.await_reserved();
        let second = scope.spawn(&second);
        // It waits for the first one, or asks the metadata. If it did not, it would soon end.
        for _ in 0..50 {
            if second.is_finished() {
                break;
            }
            RealClock.sleep(Duration::from_millis(2));
        }
        world.leader.open_reserving();
    });
}

#[test]
fn nothing_is_made_in_a_directory_that_is_being_removed() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dir = directory(own, Ino::ROOT, b"dir");
    // It is known to have no default ACL.
    make(own, dir, b"file").expect("made");
    own.unlink(ROOT, dir, b"file").expect("removed");
    let removes = || own.rmdir(ROOT, Ino::ROOT, b"dir").expect("it is empty");
    cross(&world, removes, || {
        let error = own.create(ROOT, dir, b"file", 0o644, RW, true).expect_err("it is gone");
        assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale), "{error}");
    });
    own.sync().expect("nothing is lost");
    world.end();
}

#[test]
fn a_name_is_removed_after_the_inode_has_got_another_one() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dir = directory(own, Ino::ROOT, b"dir");
    let file = make(own, dir, b"file").expect("made");
    let links = || assert!(own.link(ROOT, file, dir, b"link").is_ok());
    cross(&world, links, || own.unlink(ROOT, dir, b"file").expect("removed"));
    own.sync().expect("nothing is lost");
    assert_eq!(own.getattr(file).expect("there").links, 1);
    world.end();
}

#[test]
fn other_mounts_see_at_once_what_was_made_and_removed() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = directory(own, Ino::ROOT, b"dir");
    for round in 0..50 {
        let name = format!("n{round}").into_bytes();
        let before = told_later(&world);
        let ino = make(own, dir, &name).expect("made");
        assert_eq!(other.lookup(ROOT, dir, &name).expect("there").attr.ino, ino);
        other.forget(ino, 1);
        own.getattr(dir).expect("taken back");
        own.unlink(ROOT, dir, &name).expect("removed");
        assert!(other.lookup(ROOT, dir, &name).is_err());
        assert!(round < 3 || told_later(&world) > before, "one of them was told later");
    }
    world.end();
}

/// A new inode inherits the same as if the metadata had made it.
#[test]
fn new_inodes_inherit_what_the_directory_passes_on() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = directory(own, Ino::ROOT, b"dir");
    make(own, dir, b"first").expect("made");
    let caller = Caller { uid: 0, gid: 5, umask: 0o027, ..Caller::ROOT };
    let setgid = SetAttr { permissions: Some(0o2775), gid: Some(9), ..SetAttr::default() };
    own.setattr(ROOT, dir, None, &setgid).expect("changed");
    own.sync().expect("nothing is lost");
    let before = told_later(&world);
    let make_all = |at: &str| {
        let name = |what: &str| format!("{at}-{what}").into_bytes();
        [FileType::Regular, FileType::Directory, FileType::Symlink].map(|file_type| {
            let name = name(&format!("{file_type:?}"));
            let _ = own.lookup(ROOT, dir, &name);
            let made = match file_type {
                FileType::Directory => own.mkdir(&caller, dir, &name, 0o777),
                FileType::Symlink => own.symlink(&caller, dir, &name, b"target"),
                _ => own.create(&caller, dir, &name, 0o666, RW, true).map(|(entry, opened)| {
                    own.release(opened.handle);
                    entry
                }),
            };
            let made = made.expect("made").attr;
            let told = own.array().meta.query_inode(&MetaQuery::GetInode { ino: made.ino });
            assert_eq!(made, told.expect("there").attr);
            (made.permissions, made.gid)
        })
    };
    assert_eq!(make_all("setgid"), [(0o640, 9), (0o2750, 9), (0o777, 9)]);
    assert_eq!(told_later(&world) - before, 3);
    // Another mount has new inodes get an ACL.
    let entry = |tag, permissions| AclEntry { tag, permissions };
    let entries = [
        entry(AclTag::Owner, 7),
        entry(AclTag::User(77), 6),
        entry(AclTag::OwningGroup, 5),
        entry(AclTag::Mask, 7),
        entry(AclTag::Others, 0),
    ];
    let acl = Acl::new(entries.to_vec()).expect("valid").to_xattr();
    other.setxattr(ROOT, dir, ACL_DEFAULT, &acl, XattrMode::Set, false).expect("set");
    let before = told_later(&world);
    assert_eq!(make_all("acl"), [(0o660, 9), (0o2770, 9), (0o777, 9)]);
    assert_eq!(told_later(&world), before, "the metadata was asked");
    world.end();
}

/// A leader dies with changes that it was not told of, or that it forgets.
#[test]
fn a_new_leader_is_told_what_the_old_one_was_not() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = directory(own, Ino::ROOT, b"dir");
    for round in 0..20 {
        let names = ["a", "b", "c"].map(|at| format!("{round}{at}").into_bytes());
        names.iter().for_each(|name| assert!(make(own, dir, name).is_ok()));
        own.unlink(ROOT, dir, &names[1]).expect("removed");
        world.change_leader();
        let seen = names.map(|name| other.lookup(ROOT, dir, &name).is_ok());
        assert_eq!(seen, [true, false, true]);
    }
    world.end();
}

/// A change that is refused for good is told to the next program that needs the metadata, also if
/// that is asked for an ACL only.
#[test]
fn a_change_that_is_lost_is_told_to_the_next_program() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = directory(own, Ino::ROOT, b"dir");
    make(own, dir, b"first").expect("made");
    let theirs = directory(other, Ino::ROOT, b"theirs");
    assert!(own.lookup(ROOT, theirs, b"new").is_err(), "it is known to be absent");
    own.sync().expect("nothing is lost");
    own.getattr(theirs).expect("there");
    world.leader.refuses_later.store(true, Ordering::SeqCst);
    make(own, dir, b"lost").expect("told");
    let again = || own.create(ROOT, theirs, b"new", 0o644, RW, true);
    assert_eq!(again().map(drop).expect_err("of the lost one").kind(), ErrorKind::Io);
    world.leader.refuses_later.store(false, Ordering::SeqCst);
    own.release(again().expect("made").1.handle);
    assert_eq!(own.array().meta.lost(), 1);
    // The program that got the error may have had nothing to do with the directory.
    assert_eq!(own.fsyncdir(dir).expect_err("of the lost one").kind(), ErrorKind::Io);
    own.fsyncdir(dir).expect("it was told");
    world.end();
}

/// A leader whose cluster has an earlier feature level takes no such change.
#[test]
fn below_the_feature_level_the_metadata_is_asked() {
    let world = World::new("1", 1);
    world.leader.set_older(true);
    let own = &*world.mounts[0];
    let dir = directory(own, Ino::ROOT, b"dir");
    for name in [&b"one"[..], b"two"] {
        make(own, dir, name).expect("made");
        own.unlink(ROOT, dir, name).expect("removed");
    }
    own.sync().expect("nothing is lost");
    assert_eq!(told_later(&world), 0);
    world.end();
}
