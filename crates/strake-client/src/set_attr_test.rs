//! Owners, permissions and times that a mount has set and the metadata is told of later: no other
//! mount sees the difference.

use crate::StrakeVfs;
use crate::coherence_test::{World, seed};
use crate::testing::{HELD_UP, HELD_UP_SIZE};
use crate::vfs::{Handle, OpenFlags, SetAttr, SetTime, Vfs};
use std::sync::Arc;
use std::time::Duration;
use strake_env::lock_waits::lock_waits;
use strake_env::thread;
use strake_env::{Clock, RealClock, Rng};
use strake_proto::meta::{MetaQuery, RenameMode, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, Ino, Timestamp};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 5 }
}

fn mode(permissions: u32) -> SetAttr {
    SetAttr { permissions: Some(permissions), ..SetAttr::default() }
}

fn times(atime: i64, mtime: i64) -> SetAttr {
    let set = |seconds| Some(SetTime::At(at(seconds)));
    SetAttr { atime: set(atime), mtime: set(mtime), ..SetAttr::default() }
}

/// As the metadata has it.
fn told(mount: &StrakeVfs, ino: Ino) -> Attr {
    mount.array().meta.query_inode(&MetaQuery::GetInode { ino }).expect("there").attr
}

/// A file of the first mount, which has it open.
fn made(world: &World, name: &[u8]) -> (Ino, Handle) {
    let made = world.mounts[0].create(ROOT, Ino::ROOT, name, 0o644, RW, true);
    let (entry, opened) = made.expect("created");
    (entry.attr.ino, opened.handle)
}

#[test]
fn what_is_set_is_told_with_the_next_sync_and_seen_before() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let (ino, handle) = made(&world, b"file");
    let before = world.leader.heard();
    own.setattr(ROOT, ino, None, &mode(0o4755)).expect("set");
    for permissions in 0..100 {
        own.setattr(ROOT, ino, None, &mode(permissions)).expect("set");
    }
    own.setattr(ROOT, ino, Some(handle), &mode(0o755)).expect("set");
    // Linux asks with each new owner that privileges go, and there are none.
    let (uid, gid, kill_privileges) = (Some(7), Some(8), true);
    let owner = SetAttr { uid, gid, kill_privileges, ..SetAttr::default() };
    own.setattr(ROOT, ino, Some(handle), &owner).expect("set");
    let seen = own.setattr(ROOT, ino, None, &times(100, 200)).expect("set");
    // The thread that tells gathers for longer than this takes, as a rule.
    let asked = world.leader.heard() - before;
    assert!(asked < 50, "{asked} messages for a hundred changes");
    assert_eq!((seen.permissions, seen.uid, seen.gid), (0o755, 7, 8));
    assert_eq!((seen.atime, seen.mtime), (at(100), at(200)));
    own.fsync(handle).expect("synced");
    assert_eq!(told(own, ino), seen, "it is durable");
    own.setattr(ROOT, ino, None, &mode(0o600)).expect("set");
    assert_eq!(other.getattr(ino).expect("there").permissions, 0o600, "before the next sync");
    world.end();
}

/// A program that unpacks an archive sets the attributes of many files.
#[test]
fn attributes_of_many_files_are_told_together() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    // Open files, because a mount of a test keeps the tokens of few others.
    let name = |number: i64| format!("f{number}").into_bytes();
    let files: Vec<(Ino, Handle)> = (0..40).map(|number| made(&world, &name(number))).collect();
    own.sync().expect("synced");
    let before = world.leader.heard();
    let set = |(number, (ino, _)): (i64, &(Ino, Handle))| {
        own.setattr(ROOT, *ino, None, &times(number, number)).expect("set")
    };
    let seen: Vec<Attr> = (0..).zip(&files).map(set).collect();
    own.fsync(files[0].1).expect("synced");
    let asked = world.leader.heard() - before;
    assert!(asked < 10, "{asked} messages");
    assert!(files.iter().zip(&seen).all(|((ino, _), seen)| told(own, *ino) == *seen));
    // One is gone before it is told.
    (100..).zip(&files).map(set).for_each(drop);
    own.release(files[20].1);
    own.unlink(ROOT, Ino::ROOT, &name(20)).expect("removed");
    own.fsync(files[0].1).expect("synced");
    let seen = |ino| own.getattr(ino).expect("there");
    let others = files.iter().map(|(ino, _)| *ino).filter(|ino| *ino != files[20].0);
    others.for_each(|ino| {
        assert_eq!((told(own, ino), seen(ino).mtime.seconds >= 100), (seen(ino), true))
    });
    world.end();
}

/// A sync of many files, of which half are in their inodes.
#[test]
fn sizes_and_contents_of_many_files_are_told_together() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let name = |number: usize| format!("f{number}").into_bytes();
    let bytes =
        |number: usize| vec![number as u8; if number.is_multiple_of(2) { 3000 } else { 9000 }];
    let files: Vec<(Ino, Handle)> = (0..40).map(|number| made(&world, &name(number))).collect();
    for (number, (_, handle)) in files.iter().enumerate() {
        own.write(*handle, 0, &bytes(number)).expect("written");
    }
    let before = world.leader.heard();
    own.sync().expect("synced");
    let asked = world.leader.heard() - before;
    assert!(asked < 15, "{asked} messages");
    for (number, (ino, _)) in files.iter().enumerate() {
        assert_eq!(told(own, *ino).size, bytes(number).len() as u64);
    }
    for (number, (ino, handle)) in files.into_iter().enumerate() {
        own.release(handle);
        let opened = other.open(ROOT, ino, RW).expect("opened").handle;
        let mut found = vec![0; 10_000];
        let count = other.read(opened, 0, &mut found).expect("read");
        assert!(found[..count] == bytes(number), "file {number}");
        other.release(opened);
    }
    world.end();
}

#[test]
fn the_last_of_writes_and_set_times_counts() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let (ino, handle) = made(&world, b"file");
    own.setattr(ROOT, ino, None, &times(100, 200)).expect("set");
    own.write(handle, 0, b"bytes").expect("written");
    let written = own.getattr(ino).expect("there");
    assert!(written.mtime > at(200) && written.atime == at(100), "{written:?}");
    assert_eq!(other.getattr(ino).expect("there"), written);

    own.write(handle, 0, b"other").expect("written");
    let set = own.setattr(ROOT, ino, None, &times(300, 400)).expect("set");
    assert_eq!(set.mtime, at(400));
    assert_eq!(other.getattr(ino).expect("there"), set);
    world.end();
}

/// The metadata decides about these changes, so it has to know all before.
#[test]
fn what_the_metadata_must_know_is_told_first() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let (ino, handle) = made(&world, b"file");
    own.setattr(ROOT, ino, None, &mode(0o4777)).expect("set");
    own.setxattr(ROOT, ino, b"user.a", b"1", XattrMode::Set, false).expect("set");
    assert_eq!(told(own, ino).permissions, 0o4777);
    own.setattr(ROOT, ino, None, &mode(0o6777)).expect("set");
    assert_eq!(told(own, ino).permissions, 0o6777, "attributes may go with the mode");

    let (ino, second) = made(&world, b"second");
    own.setattr(ROOT, ino, None, &mode(0o4777)).expect("set");
    let kills = SetAttr { kill_privileges: true, ..SetAttr::default() };
    own.setattr(ROOT, ino, None, &kills).expect("set");
    assert_eq!(told(own, ino).permissions, 0o777);
    assert_eq!(own.getattr(ino).expect("there").permissions, 0o777);

    let ctime = own.setattr(ROOT, ino, None, &mode(0o640)).expect("set").ctime;
    let (from, to) = ((Ino::ROOT, &b"second"[..]), (Ino::ROOT, &b"third"[..]));
    own.rename(ROOT, from, to, RenameMode::Replace).expect("renamed");
    let renamed = own.getattr(ino).expect("there");
    assert!(renamed.ctime > ctime && renamed.permissions == 0o640, "{renamed:?}");
    own.fsync(second).expect("synced");
    assert_eq!(told(own, ino), renamed, "the change time does not go back");
    own.release(handle);
    world.end();
}

/// Programs that copy trees ask for them, of each file.
#[test]
fn extended_attributes_that_are_known_to_be_absent_are_not_asked_for() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let (file, _) = made(&world, b"file");
    let dir = own.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let names = |ino| own.listxattr(ROOT, ino).expect("listed");
    let acl = b"system.posix_acl_access";
    let asks = |ino| {
        assert!(names(ino).is_empty());
        for name in [&b"user.a"[..], acl] {
            let absent = own.getxattr(ROOT, ino, name).expect_err("absent");
            assert_eq!(absent.kind(), ErrorKind::NoAttribute);
        }
    };
    // Whether a directory has a default ACL is asked once.
    [file, dir].into_iter().for_each(asks);
    let before = world.leader.heard();
    [file, dir].into_iter().for_each(asks);
    assert_eq!(world.leader.heard(), before);
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries =
        [(1, 6, u32::MAX), (2, 6, 7), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 4, u32::MAX)];
    let entries = entries.map(|(tag, permissions, id)| entry(tag, permissions, id));
    let value = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
    for ino in [file, dir] {
        other.setxattr(ROOT, ino, b"user.a", b"1", XattrMode::Set, false).expect("set");
        assert_eq!(names(ino), [b"user.a"]);
        other.removexattr(ROOT, ino, b"user.a").expect("removed");
        assert!(names(ino).is_empty());
        other.setxattr(ROOT, ino, acl, &value, XattrMode::Set, false).expect("set");
        assert_eq!(names(ino), [acl]);
        assert_eq!(own.getxattr(ROOT, ino, acl).expect("there"), value);
        other.removexattr(ROOT, ino, acl).expect("removed");
        assert!(names(ino).is_empty());
    }
    let default = b"system.posix_acl_default";
    other.setxattr(ROOT, dir, default, &value, XattrMode::Set, false).expect("set");
    assert_eq!(names(dir), [default]);
    assert_eq!(own.getxattr(ROOT, dir, default).expect("there"), value);
    world.end();
}

/// The attributes that a file should have. A time that is not set is only known to have moved on.
struct Expected {
    permissions: u32,
    uid: u32,
    mtime: Option<Timestamp>,
    size: u64,
    ctime: Timestamp,
}

fn step(mounts: &[Arc<StrakeVfs>], file: (Ino, &[Handle]), it: &mut Expected, rng: &mut Rng) {
    let (ino, handles) = file;
    let by = rng.index(mounts.len());
    let (mount, handle) = (&mounts[by], handles[by]);
    match rng.below(8) {
        0 | 1 => {
            it.permissions = rng.below(0o1000) as u32;
            mount.setattr(ROOT, ino, None, &mode(it.permissions)).expect("set");
        }
        2 => {
            it.uid = rng.below(9) as u32;
            let owner = SetAttr { uid: Some(it.uid), ..SetAttr::default() };
            mount.setattr(ROOT, ino, None, &owner).expect("set");
        }
        3 | 4 => {
            let seconds = rng.below(1 << 40) as i64;
            it.mtime = Some(at(seconds));
            mount.setattr(ROOT, ino, None, &times(1, seconds)).expect("set");
        }
        5 => {
            let offset = rng.below(100_000);
            mount.write(handle, offset, b"bytes").expect("written");
            (it.size, it.mtime) = (it.size.max(offset + 5), None);
        }
        6 => mount.fsync(handle).expect("synced"),
        _ => {
            it.size = rng.below(100_000);
            it.mtime = None;
            let size = SetAttr { size: Some(it.size), ..SetAttr::default() };
            mount.setattr(ROOT, ino, Some(handle), &size).expect("set");
        }
    }
    let sees = &mounts[rng.index(mounts.len())];
    let seen = sees.getattr(ino).expect("there");
    assert_eq!((seen.permissions, seen.uid, seen.size), (it.permissions, it.uid, it.size));
    assert!(it.mtime.is_none_or(|mtime| mtime == seen.mtime), "{seen:?}");
    assert!(seen.ctime >= it.ctime, "the change time goes back");
    it.ctime = seen.ctime;
}

#[test]
fn every_mount_sees_what_any_mount_has_set() {
    let seed = seed();
    println!("STRAKE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let world = World::new("1", 1);
    let (ino, first) = made(&world, b"file");
    let mut handles = vec![first];
    for mount in &world.mounts[1..] {
        mount.lookup(ROOT, Ino::ROOT, b"file").expect("there");
        handles.push(mount.open(ROOT, ino, RW).expect("opened").handle);
    }
    let ctime = Timestamp::default();
    let mut it = Expected { permissions: 0o644, uid: 0, mtime: None, size: 0, ctime };
    for _ in 0..2000 {
        step(&world.mounts, (ino, &handles), &mut it, &mut rng);
    }
    world.end();
}

/// Regression: a thread that was to tell attributes waited for another one, which told them and
/// gave the file up. Then it loaded the attributes. This client held no token any more, so it did
/// not hear of later changes, and showed old attributes as soon as it had a token again.
#[test]
fn nothing_is_loaded_for_attributes_that_another_thread_has_told() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let (ino, _) = made(&world, b"file");
    let inode = own.mount.table.find(ino).expect("it is open");
    thread::scope(|scope| {
        let telling = inode.telling.lock();
        own.setattr(ROOT, ino, None, &mode(0o600)).expect("kept");
        let late = scope.spawn(|| own.mount.tell_kept());
        await_wait("attributes of the same file", || late.is_finished());
        let mut core = inode.core.lock();
        core.forget_untold();
        core.forget_all();
        drop((core, telling));
        late.join().expect("no panic").expect("nothing is left to be told");
    });
    assert!(!inode.core.lock().is_loaded(), "it was loaded without a token");
    world.end();
}

/// An fsync of any file makes all attributes durable that were changed before.
#[test]
fn a_sync_of_another_file_tells_all_that_was_set() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let files: Vec<(Ino, Handle)> =
        (0..20).map(|at| made(&world, format!("file{at}").as_bytes())).collect();
    for (at, (ino, _)) in files.iter().enumerate() {
        own.setattr(ROOT, *ino, None, &mode(0o600 + at as u32)).expect("set");
    }
    own.fsync(files[0].1).expect("synced");
    for (at, (ino, _)) in files.iter().enumerate() {
        assert_eq!(told(own, *ino).permissions, 0o600 + at as u32);
        own.setattr(ROOT, *ino, None, &mode(0o700 + at as u32)).expect("set");
    }
    own.fsyncdir(Ino::ROOT).expect("synced");
    let all_told = || {
        let is_told = |(at, (ino, _)): (usize, &(Ino, Handle))| {
            told(own, *ino).permissions == 0o700 + at as u32
        };
        files.iter().enumerate().all(is_told)
    };
    assert!(all_told());
    world.end();
}

/// Nobody syncs anything.
#[test]
fn what_is_set_is_told_before_long() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let (ino, _) = made(&world, b"file");
    own.setattr(ROOT, ino, None, &mode(0o600)).expect("set");
    let clock = RealClock::shared();
    let start = clock.monotonic();
    while told(own, ino).permissions != 0o600 {
        assert!(clock.monotonic() - start < HANGS, "nobody tells it");
        thread::yield_now();
    }
    world.end();
}

/// Two threads of a mount would tell the same attributes, and one of them so late that another
/// mount has set them anew.
#[test]
fn attributes_are_told_once_however_long_that_takes() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let (ino, _) = made(&world, b"file");
    world.leader.shut_gate();
    own.setattr(ROOT, ino, None, &mode(HELD_UP)).expect("set");
    world.leader.await_gate_reached();
    thread::scope(|scope| {
        let setting = scope.spawn(|| {
            other.setattr(ROOT, ino, None, &mode(0o600)).expect("set");
            other.fsyncdir(Ino::ROOT).expect("synced");
        });
        await_wait("attributes of the same file", || setting.is_finished());
        world.leader.open_gate();
        setting.join().expect("no panic");
    });
    // A change that is late would arrive about now.
    for _ in 0..20_000 {
        assert_eq!(told(other, ino).permissions, 0o600);
    }
    assert_eq!(own.getattr(ino).expect("there").permissions, 0o600);
    world.end();
}

/// Waits until somebody waits for a lock of this name, or it `ends` without that.
fn await_wait(lock: &str, ends: impl Fn() -> bool) {
    let start = RealClock.monotonic();
    while !lock_waits().iter().any(|wait| wait.name == lock) && !ends() {
        assert!(RealClock.monotonic() - start < HANGS, "it hangs");
        thread::yield_now();
    }
}

/// The file's bytes are written after its times were set. A sync of many files tells the size and
/// the times of the bytes while the times before are on their way.
#[test]
fn contents_are_told_after_the_times_that_were_set_before() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let (ino, handle) = made(&world, b"file");
    world.leader.shut_gate();
    own.setattr(ROOT, ino, None, &SetAttr { permissions: Some(HELD_UP), ..times(100, 200) })
        .expect("set");
    world.leader.await_gate_reached();
    own.write(handle, 0, b"bytes").expect("written");
    let written = own.getattr(ino).expect("there").mtime;
    thread::scope(|scope| {
        let syncing = scope.spawn(|| own.sync().expect("synced"));
        await_wait("attributes of the same file", || syncing.is_finished());
        world.leader.open_gate();
        syncing.join().expect("no panic");
    });
    assert_eq!((told(own, ino).mtime, told(own, ino).atime), (written, at(100)));
    world.end();
}

/// The other way round, for one file with times and for several.
#[test]
fn times_that_are_set_are_told_after_the_contents_of_before() {
    for others in 0..2 {
        let world = World::new("1", 1);
        let own = &*world.mounts[0];
        let (ino, handle) = made(&world, b"file");
        own.write(handle, 0, &[1; HELD_UP_SIZE as usize]).expect("written");
        world.leader.shut_gate();
        thread::scope(|scope| {
            let syncing = scope.spawn(|| own.sync().expect("synced"));
            world.leader.await_gate_reached();
            for other in 0..others {
                let (ino, _) = made(&world, format!("other{other}").as_bytes());
                own.setattr(ROOT, ino, None, &times(1, 2)).expect("set");
            }
            own.setattr(ROOT, ino, None, &times(100, 200)).expect("set");
            await_wait("size of the same file", || told(own, ino).mtime == at(200));
            world.leader.open_gate();
            syncing.join().expect("no panic");
        });
        own.fsync(handle).expect("synced");
        assert_eq!(told(own, ino).mtime, at(200), "with {others} others");
        world.end();
    }
}
