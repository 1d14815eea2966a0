//! Names that a mount knows under the token of their directory: they are asked of nobody, and they
//! are never what another mount, or another thread, has changed.

use crate::StrakeVfs;
use crate::coherence_test::World;
use crate::vfs::{DirItem, OpenFlags, Vfs};
use std::collections::BTreeMap;
use strake_env::Rng;
use strake_env::thread;
use strake_proto::meta::RenameMode;
use strake_proto::{Caller, ErrorKind, Ino};

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
    let done = match rng.below(5) {
        0 | 1 => vfs
            .create(ROOT, dir, &names[0], 0o644, RW, true)
            .map(|(_, opened)| vfs.release(opened.handle)),
        2 => vfs.unlink(ROOT, dir, &names[0]),
        3 => vfs.rename(ROOT, (dir, &names[0]), (dir, &names[1]), RenameMode::Replace),
        _ => vfs.lookup(ROOT, dir, &names[0]).map(drop),
    };
    if let Err(error) = done {
        assert!(matches!(error.kind(), ErrorKind::Exists | ErrorKind::NotFound), "{error}");
    }
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
            // A listing asks the metadata, and the mount keeps the token that it holds.
            let mut listed = BTreeMap::new();
            let list = &mut |item: &DirItem| listed.insert(item.name.clone(), item.ino).is_none();
            mount.readdir(dir, 2, false, list).expect("listed");
            for at in 0..3 {
                let name = format!("n{at}").into_bytes();
                let ino = listed.get(&name).copied();
                assert_eq!(found(mount, dir, &name), ino, "round {round}, name {at}");
            }
        }
    }
    world.end();
}
