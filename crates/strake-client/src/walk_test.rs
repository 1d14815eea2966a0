//! Programs that look at the entries of a directory one after the other: many are asked for
//! together, and each is shown as it is.

use crate::StrakeVfs;
use crate::coherence_test::{World, client};
use crate::vfs::{DirItem, OpenFlags, Vfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strake_env::Rng;
use strake_proto::{Caller, ErrorKind, Ino};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const FILES: usize = 100;
const WRITES: u64 = 2000;
const SEED: u64 = 1;

fn name(number: usize) -> Vec<u8> {
    format!("walked-{number}").into_bytes()
}

/// A mount has made files of different sizes in a directory, and has ended. Another one has room
/// for all tokens, and has listed them.
fn listed() -> (World, Ino, Arc<StrakeVfs>, Vec<Vec<u8>>) {
    let world = World::new("1", 1);
    let (maker, _) = world.rig.start_keeping(10 * FILES, &world.leader, client(8));
    let dir = maker.mkdir(ROOT, Ino::ROOT, b"walked", 0o755).expect("made").attr.ino;
    for number in 0..FILES {
        let made = maker.create(ROOT, dir, &name(number), 0o644, RW, true);
        let handle = made.expect("made").1.handle;
        maker.write(handle, 0, &vec![1; number]).expect("there is room");
        maker.release(handle);
    }
    maker.shutdown().expect("ends");
    world.leader.service().gone(client(8));
    let (own, _) = world.rig.start_keeping(10 * FILES, &world.leader, client(7));
    own.lookup(ROOT, Ino::ROOT, b"walked").expect("seen");
    let mut names = Vec::new();
    let take = &mut |item: &DirItem| {
        names.push(item.name.clone());
        true
    };
    own.readdir(dir, 2, false, take).expect("listed");
    assert_eq!(names.len(), FILES);
    (world, dir, own, names)
}

fn end(world: World, own: &StrakeVfs) {
    own.shutdown().expect("ends");
    world.leader.service().gone(client(7));
    world.end();
}

#[test]
fn a_walk_through_a_listing_asks_for_many_files_together() {
    let (world, dir, own, names) = listed();
    let before = world.leader.heard();
    for listed in &names {
        let attr = own.lookup(ROOT, dir, listed).expect("seen").attr;
        assert_eq!(name(attr.size as usize), *listed);
    }
    let asked = world.leader.heard() - before;
    println!("{asked} messages for {FILES} files");
    // Three for each without the listing: its name, its token, its inode.
    assert!(asked < FILES as u64 / 5, "{asked} messages");
    // A file is opened next without a message.
    let last = own.lookup(ROOT, dir, &names[FILES - 1]).expect("seen").attr.ino;
    let before = world.leader.heard();
    let opened = own.open(ROOT, last, OpenFlags { write: false, ..RW }).expect("opened");
    own.release(opened.handle);
    assert!(world.leader.heard() - before <= 1, "its contents alone are asked for");
    end(world, &own);
}

#[test]
fn what_was_fetched_ahead_is_never_what_another_mount_has_changed() {
    let (world, dir, own, names) = listed();
    let other = &world.mounts[1];
    let inodes = world.inodes();
    let look = |at: usize| own.lookup(ROOT, dir, &names[at]).map(|entry| entry.attr);
    (0..4).for_each(|at| assert!(look(at).is_ok(), "it is seen"));
    for at in (6..40).step_by(3) {
        // One that was fetched is written, and one is removed.
        let ino = other.lookup(ROOT, dir, &names[at]).expect("seen").attr.ino;
        let handle = other.open(ROOT, ino, RW).expect("opened").handle;
        other.write(handle, 0, &vec![2; 1000 + at]).expect("there is room");
        other.release(handle);
        other.unlink(ROOT, dir, &names[at + 1]).expect("removed");
        assert_eq!(look(at).expect("seen").size, 1000 + at as u64);
        let gone = look(at + 1).map(|_| ());
        assert_eq!(gone.map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    }
    // Nobody has one of them open.
    world.await_inodes(inodes - 12, "the files that were removed are gone");
    end(world, &own);
}

/// Another mount writes the files without a pause, so they are given up and fetched again while a
/// program walks. It sees each size that was there before it looked.
#[test]
fn a_walk_beside_a_writer_shows_no_size_of_before() {
    let (world, dir, own, names) = listed();
    let writer = &world.mounts[1];
    let inos: Vec<Ino> =
        names.iter().map(|name| writer.lookup(ROOT, dir, name).expect("seen").attr.ino).collect();
    let sizes: Vec<AtomicU64> = names.iter().map(|_| AtomicU64::new(0)).collect();
    strake_env::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut rng = Rng::new(SEED);
            for size in FILES as u64..FILES as u64 + WRITES {
                let at = rng.index(FILES);
                let handle = writer.open(ROOT, inos[at], RW).expect("opened").handle;
                writer.write(handle, size, &[3]).expect("there is room");
                sizes[at].store(size + 1, Ordering::Release);
                writer.release(handle);
            }
        });
        while !writing.is_finished() {
            for (at, name) in names.iter().enumerate() {
                let before = sizes[at].load(Ordering::Acquire);
                let size = own.lookup(ROOT, dir, name).expect("seen").attr.size;
                assert!(size >= before, "seed {SEED}, file {at}: {size} < {before}");
            }
        }
    });
    end(world, &own);
}

/// Files are removed while another mount walks: it sees each name or none, and nothing stays of
/// the files that were removed.
#[test]
fn files_that_are_removed_during_a_walk_leave_nothing() {
    let (world, dir, own, names) = listed();
    let inodes = world.inodes();
    strake_env::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            for name in &names {
                world.mounts[1].unlink(ROOT, dir, name).expect("removed");
            }
        });
        while !remover.is_finished() {
            let mut found = Vec::new();
            let take = &mut |item: &DirItem| {
                found.push(item.name.clone());
                true
            };
            own.readdir(dir, 2, false, take).expect("listed");
            for listed in found {
                match own.lookup(ROOT, dir, &listed) {
                    Ok(entry) => assert_eq!(name(entry.attr.size as usize), listed),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
            }
        }
    });
    world.await_inodes(inodes - FILES as u64, "the files that were removed are gone");
    end(world, &own);
}
