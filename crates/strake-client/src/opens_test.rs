//! Opens and closes under a token, and files that are made with one: the messages that they cost,
//! and that a file without a name goes with its last handle all the same.

use crate::StrakeVfs;
use crate::coherence_test::{MOUNTS, World};
use crate::vfs::{Handle, OpenFlags, Vfs};
use strake_env::Rng;
use strake_env::thread;
use strake_proto::meta::RenameMode;
use strake_proto::{Caller, ErrorKind, Ino};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const READ: OpenFlags = OpenFlags { write: false, ..OpenFlags::READ_WRITE };

fn directory(vfs: &StrakeVfs) -> Ino {
    vfs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino
}

fn make(vfs: &StrakeVfs, dir: Ino, name: &[u8]) -> (Ino, Handle) {
    let (entry, opened) = vfs.create(ROOT, dir, name, 0o644, RW, true).expect("created");
    (entry.attr.ino, opened.handle)
}

fn open(vfs: &StrakeVfs, ino: Ino, flags: OpenFlags) -> Handle {
    vfs.open(ROOT, ino, flags).expect("opened").handle
}

/// How many messages the leader gets while `work` is done.
fn messages(world: &World, work: impl FnOnce()) -> u64 {
    let before = world.leader.heard();
    work();
    world.leader.heard() - before
}

#[test]
fn opens_and_closes_under_a_token_are_told_to_nobody() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = directory(own);
    let (file, handle) = make(own, dir, b"file");
    let again = || {
        for flags in [RW, READ, RW] {
            own.release(open(own, file, flags));
        }
    };
    assert_eq!(messages(&world, || own.release(handle)), 0, "a close");
    assert_eq!(messages(&world, again), 0, "opens and closes of an empty file");
    // A lookup by another mount takes the token away; it brings what an open needs.
    other.lookup(ROOT, dir, b"file").expect("there");
    let handle = open(other, file, READ);
    other.release(handle);
    let again = || (0..9).for_each(|_| other.release(open(other, file, READ)));
    assert_eq!(messages(&world, again), 0, "opens and closes by a mount that has looked it up");
    world.end();
}

#[test]
fn a_new_file_comes_with_its_token() {
    let world = World::new("1", 1);
    let own = &*world.mounts[0];
    let dir = directory(own);
    let settle = || assert!(own.array().meta.counts().is_ok());
    // Numbers are reserved, and it is known that the directory has no default ACL.
    own.release(make(own, dir, b"none").1);
    settle();
    let made = || {
        own.release(make(own, dir, b"one").1);
        let inside = own.mkdir(ROOT, dir, b"two", 0o755).expect("made").attr.ino;
        own.release(make(own, inside, b"three").1);
        settle();
    };
    // The changes that make them, one to three at a time, and the last question.
    let asked = messages(&world, made);
    assert!((2..=4).contains(&asked), "{asked} messages");
    world.end();
}

/// The file is removed by the mount that has it open, by another one, and by a rename.
#[test]
fn a_file_that_loses_its_name_goes_with_its_last_handle() {
    let world = World::new("1", 1);
    let (own, other) = (&*world.mounts[0], &*world.mounts[1]);
    let dir = directory(own);
    let before = world.inodes();
    for remover in [own, other] {
        let (file, handle) = make(own, dir, b"file");
        let second = open(own, file, READ);
        remover.unlink(ROOT, dir, b"file").expect("removed");
        own.release(handle);
        assert_eq!(own.getattr(file).expect("it is open").links, 0);
        assert_eq!(world.inodes(), before + 1, "it is open");
        own.release(second);
        assert_eq!(world.inodes(), before);
    }
    for remover in [own, other] {
        let (_, handle) = make(own, dir, b"file");
        own.release(make(own, dir, b"source").1);
        let (source, target) = ((dir, &b"source"[..]), (dir, &b"file"[..]));
        remover.rename(ROOT, source, target, RenameMode::Replace).expect("replaced");
        assert_eq!(world.inodes(), before + 2, "it is open");
        own.release(handle);
        assert_eq!(world.inodes(), before + 1);
        remover.unlink(ROOT, dir, b"file").expect("removed");
        assert_eq!(world.inodes(), before, "nobody has it open, whatever the table said");
    }
    world.end();
}

/// One step of a thread: it makes, opens and closes, or removes one of few names.
fn step(vfs: &StrakeVfs, dir: Ino, rng: &mut Rng) {
    let name = format!("n{}", rng.below(2)).into_bytes();
    let done = match rng.below(4) {
        0 => vfs
            .create(ROOT, dir, &name, 0o644, RW, false)
            .map(|(_, opened)| vfs.release(opened.handle)),
        1 => vfs.unlink(ROOT, dir, &name),
        2 => {
            let other = format!("n{}", rng.below(2)).into_bytes();
            vfs.rename(ROOT, (dir, &name), (dir, &other), RenameMode::Replace).map(drop)
        }
        _ => vfs.lookup(ROOT, dir, &name).and_then(|entry| {
            let opened = vfs.open(ROOT, entry.attr.ino, READ)?;
            let looked = vfs.getattr(entry.attr.ino);
            vfs.release(opened.handle);
            looked.map(drop)
        }),
    };
    if let Err(error) = done {
        let kinds = [ErrorKind::Exists, ErrorKind::NotFound, ErrorKind::Stale];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

#[test]
fn files_that_are_removed_while_others_open_and_close_them_go() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("SEED={seed}");
    let world = World::new("1", 1);
    let dir = directory(&world.mounts[0]);
    let before = world.inodes();
    for round in 0..60 {
        // In half of the rounds only one mount works, and so keeps the tokens for long.
        let mounts = if round % 2 == 0 { &world.mounts[..1] } else { &world.mounts[..] };
        thread::scope(|scope| {
            for (at, mount) in mounts.iter().flat_map(|mount| [mount, mount]).enumerate() {
                let mut rng = Rng::new(seed ^ (round << 8) ^ at as u64);
                scope.spawn(move || (0..40).for_each(|_| step(mount, dir, &mut rng)));
            }
        });
        let remover = &world.mounts[round as usize % MOUNTS];
        for at in 0..2 {
            // It may be absent.
            let _ = remover.unlink(ROOT, dir, format!("n{at}").as_bytes());
        }
        // The leader may be asking a mount that has removed a name what it has open.
        world.await_inodes(before, &format!("round {round}: nobody has any of them open"));
    }
    world.end();
}
