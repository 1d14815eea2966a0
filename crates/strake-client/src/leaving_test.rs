//! A mount that lives gives its files up while a new leader puts right what others may have left.
//! At that moment the leader has read what the metadata knew of these files before.

use crate::StrakeVfs;
use crate::coherence_test::{File, MOUNTS, World, client};
use crate::testing::{BLOCK_SIZE, CREW, Crew, assert_whole, send_block};
use crate::vfs::Vfs;
use std::cell::RefCell;
use std::sync::Arc;
use strake_manager::{TokenService, after_crash};
use strake_proto::{ClientId, GrantNumber, Ino};
use strake_token::port::ToClient;

const BLOCK: usize = BLOCK_SIZE as usize;

/// Another leader has begun, and the mounts have said what they hold. The manager's client has not,
/// as after each start: so whatever no living mount holds exclusively is looked at.
fn next_leader(world: &World) -> Arc<TokenService> {
    let clients: Vec<ClientId> = (0..MOUNTS).map(client).chain([CREW]).collect();
    let old = world.leader.service();
    let next = world.rig.tokens(&clients);
    world.leader.change(Arc::clone(&next));
    old.stop();
    for (at, tokens) in world.tokens.iter().enumerate() {
        next.came_back(client(at), Arc::clone(tokens) as Arc<dyn ToClient>);
    }
    next
}

/// The parts of a recovery.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Stripes,
    SmallWrites,
}

/// Puts right what was left. `leave` is called once in that part of it, just before it is asked
/// whether the file belongs to what is put right.
fn recover(
    service: &TokenService,
    vfs: &StrakeVfs,
    (ino, part): (Ino, Part),
    leave: impl FnOnce(),
) {
    let leave = RefCell::new(Some(leave));
    let heal = |number: GrantNumber, of: &dyn Fn(Ino) -> bool| {
        vfs.array().io.versions().raise(number);
        let of_late = |now: Part| {
            let leave = &leave;
            move |asked: Ino| {
                if (asked, now) == (ino, part)
                    && let Some(leave) = leave.borrow_mut().take()
                {
                    assert!(!of(ino), "a living mount holds the file");
                    leave();
                    assert!(of(ino), "nobody holds the file any more");
                }
                of(asked)
            }
        };
        after_crash::recover_files(vfs.array(), &of_late(Part::Stripes))?;
        vfs.fold(&of_late(Part::SmallWrites)).map(drop)
    };
    service.bury(&[CREW].into(), &heal).expect("buried");
    assert!(leave.borrow().is_none(), "the file was looked at");
}

/// The first mount ends in order.
fn end_first(world: &World) {
    world.mounts[0].shutdown().expect("ends");
    world.leader.service().gone(client(0));
}

fn end(world: World, crew: Crew) {
    for (at, mount) in world.mounts.iter().enumerate().skip(1) {
        mount.shutdown().expect("ends");
        world.leader.service().gone(client(at));
    }
    crew.vfs.shutdown().expect("ends");
    world.leader.service().stop();
}

fn assert_reads(world: &World, file: &File) {
    let mut out = vec![0; file.bytes.len() + 1];
    let count = world.mounts[1].read(file.handles[1], 0, &mut out).expect("readable");
    let wrong = (0..count).find(|at| out[*at] != file.bytes[*at]);
    assert_eq!((count, wrong), (file.bytes.len(), None), "{}", file.name);
    assert_whole(&world.mounts[1], file.ino, &file.name);
    let attr = world.mounts[1].getattr(file.ino).expect("attributes");
    assert_eq!(attr.allocated, file.bytes.len() as u64, "{}: counted bytes", file.name);
}

/// R5: what lies beyond the size is deleted by the size that the file has while nobody can change
/// it, and its bytes are counted then.
#[test]
fn blocks_beyond_a_size_of_before_are_not_deleted_and_not_counted_twice() {
    let (world, crew) = World::with_crew("2x", 3);
    crew.manager.stop();
    let mut file = File::new(&world, "grows".to_owned());
    file.bytes = (0..4 * BLOCK).map(|at| (at / 11) as u8).collect();
    let mount = &world.mounts[0];
    mount.write(file.handles[0], 0, &file.bytes[..BLOCK]).expect("there is room");
    mount.fsync(file.handles[0]).expect("synced");
    // The metadata hears of these blocks later.
    mount.write(file.handles[0], BLOCK as u64, &file.bytes[BLOCK..]).expect("there is room");
    (1..4).for_each(|block| send_block(mount, file.ino, block));
    let next = next_leader(&world);
    recover(&next, &crew.vfs, (file.ino, Part::Stripes), || end_first(&world));
    assert_reads(&world, &file);
    end(world, crew);
}

/// What the metadata had of small synchronous writes is older than what the mount wrote before it
/// gave the file up.
#[test]
fn small_writes_of_before_do_not_come_back_over_newer_ones() {
    let (world, crew) = World::with_crew("2x", 3);
    crew.manager.stop();
    let mut file = File::new(&world, "overwritten".to_owned());
    file.bytes = vec![1; 2 * BLOCK];
    let (mount, handle) = (&world.mounts[0], file.handles[0]);
    mount.write(handle, 0, &file.bytes).expect("there is room");
    mount.fsync(handle).expect("synced");
    let mut put = |byte: u8| {
        for offset in [5000, BLOCK + 9000] {
            mount.write(handle, offset as u64, &[byte; 100]).expect("there is room");
            file.bytes[offset..offset + 100].fill(byte);
        }
        mount.fsync(handle).expect("synced");
    };
    put(2);
    let next = next_leader(&world);
    recover(&next, &crew.vfs, (file.ino, Part::SmallWrites), || {
        put(3);
        end_first(&world);
    });
    assert_reads(&world, &file);
    end(world, crew);
}
