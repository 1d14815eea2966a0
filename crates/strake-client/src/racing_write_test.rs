//! A new block is written while an NSD that is brought up to date is compared with the others.
//!
//! The dangerous order, which these tests force: the NSD accepts its strip of the new block and is
//! listed; its partners are listed before they accept theirs. So the strip looks like one that only
//! this NSD has, although the write is about to be acknowledged.

use crate::delete_test::wait_for_end;
use crate::memory::file::Content;
use crate::testing::Mounted;
use crate::testing::{BLOCK_SIZE, Rig, send_block};
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use crate::vfs::{Handle, Vfs};
use std::sync::Arc;
use std::time::Duration;
use strake_env::sync::{Condvar, Mutex};
use strake_manager::Deletion;
use strake_proto::nsd::NsdRequest;
use strake_proto::{BlockIndex, Ino, NsdId, ObjectId, ObjectLayout, SlotIndex};
use strake_testing::MemoryNsd;
use strake_testing::memory_nsd::Moment;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes of the new block: short, so that no writer behind sends it before the test does.
const LENGTH: usize = 9000;
/// A wait that lasts longer is a fault.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Steps {
    /// The newcomer is about to be listed: the writer may begin.
    begun: bool,
    /// The newcomer has accepted its strip of the new block.
    accepted: bool,
    /// These were listed after that: a mask.
    listed: u32,
}

/// Forces the order of the file's head, once.
struct Order {
    object: ObjectId,
    block: BlockIndex,
    steps: Mutex<Steps>,
    changed: Condvar,
}

impl Order {
    /// Between the NSD that is compared and its partners in the stripe of `block`.
    fn force(
        object: ObjectId,
        block: u64,
        newcomer: &MemoryNsd,
        partners: &[&Arc<MemoryNsd>],
    ) -> Arc<Order> {
        let (block, steps) = (BlockIndex(block), Mutex::default());
        let order = Arc::new(Order { object, block, steps, changed: Condvar::new() });
        let own = Arc::clone(&order);
        newcomer.set_watch(Some(Arc::new(move |moment, request| {
            if moment == Moment::Before && own.is_listing(request) && !own.steps.lock().begun {
                own.change(|steps| steps.begun = true);
                own.wait("the newcomer has its strip", |steps| steps.accepted);
            }
            if moment == Moment::After && own.is_write(request) {
                own.change(|steps| steps.accepted = true);
            }
        })));
        for (at, partner) in partners.iter().enumerate() {
            let own = Arc::clone(&order);
            partner.set_watch(Some(Arc::new(move |moment, request| {
                if moment == Moment::After && own.is_listing(request) {
                    own.change(|steps| steps.listed |= u32::from(steps.accepted) << at);
                }
                if moment == Moment::Before && own.is_write(request) {
                    own.wait("the partner was listed", |steps| steps.listed >> at & 1 == 1);
                }
            })));
        }
        order
    }

    fn is_listing(&self, request: &NsdRequest) -> bool {
        matches!(request, NsdRequest::List { object, until, .. }
            if *object == self.object && until.0 == object.0 + 1)
    }

    fn is_write(&self, request: &NsdRequest) -> bool {
        matches!(request, NsdRequest::Write { key, .. }
            if key.object == self.object && key.block == self.block)
    }

    fn change(&self, change: impl FnOnce(&mut Steps)) {
        change(&mut self.steps.lock());
        self.changed.notify_all();
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Steps) -> bool) {
        let mut steps = self.steps.lock();
        while !is_so(&steps) {
            let late = self.changed.wait_for(&mut steps, WAIT_MAX).timed_out();
            assert!(!late || is_so(&steps), "still not: {what}");
        }
    }

    /// Writes the new block when its moment has come.
    fn write(&self, vfs: &Mounted, ino: Ino, handle: Handle) {
        self.wait("the newcomer is compared", |steps| steps.begun);
        write(vfs, handle, self.block.0 * BLOCK, &pattern(LENGTH, 9));
        send_block(vfs, ino, self.block.0);
    }
}

fn layout_of(vfs: &Mounted, ino: Ino) -> ObjectLayout {
    let inode = vfs.mount.table.pin(ino);
    let file = vfs.mount.file(&inode).expect("a file");
    let content = file.content.read();
    match &*content {
        Content::Object(layout) => *layout,
        other => panic!("the file has no object: {other:?}"),
    }
}

fn quiet_rig(count: u16) -> Rig {
    let mut rig = Rig::new("2x", count);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig
}

/// Every strip is there, and what was written is read from either NSD of a stripe.
fn verify(rig: &Rig, vfs: Mounted, gone: u32, block: u64, why: &str) {
    rig.nsds.iter().for_each(|nsd| nsd.set_watch(None));
    vfs.sync().expect("synced");
    vfs.tend();
    let check = vfs.manager.check_strips().expect("checks");
    assert_eq!(check.faults, Vec::<String>::new(), "{why}");
    vfs.shutdown().expect("ended");
    drop(vfs);
    for away in (0..rig.nsds.len()).filter(|at| gone >> at & 1 == 0) {
        let vfs = rig.start(gone | 1 << away);
        let (_, handle) = open(&vfs, "f");
        let found = read(&vfs, handle, block * BLOCK, LENGTH);
        assert!(found == pattern(LENGTH, 9), "{why}: without NSD {away}");
        drop(vfs);
        let vfs = rig.start(gone);
        vfs.manager.recover_nsds();
        vfs.shutdown().expect("ended");
    }
}

/// Regression: the recovery deleted, without the block's lock, a strip that it took for one that
/// only the returning NSD had.
#[test]
fn a_block_written_while_an_nsd_is_compared_keeps_its_strip_there() {
    for by_table in [true, false] {
        let why = if by_table { "by its table" } else { "in full" };
        let rig = quiet_rig(2);
        let vfs = rig.start(0);
        let (ino, handle) = create(&vfs, "f");
        write(&vfs, handle, 0, &pattern(200_000, 1));
        vfs.fsync(handle).expect("synced");
        vfs.array().attach_nsd(SlotIndex(1), None);
        // Blocks that the NSD misses; the new one is between them.
        write(&vfs, handle, 0, &pattern(200_000, 2));
        write(&vfs, handle, 2 * BLOCK, &pattern(LENGTH, 3));
        vfs.fsync(handle).expect("one may be away");
        if !by_table {
            vfs.mount.array.io.nsds().missed().distrust(SlotIndex(1));
        }
        let object = layout_of(&vfs, ino).object;
        let order = Order::force(object, 1, &rig.nsds[1], &[&rig.nsds[0]]);
        strake_env::thread::scope(|scope| {
            scope.spawn(|| order.write(&vfs, ino, handle));
            vfs.array().attach_nsd(SlotIndex(1), rig.port(1));
            vfs.manager.recover_nsds();
        });
        vfs.fsync(handle).expect("synced");
        vfs.manager.recover_nsds();
        assert!(vfs.array().nsds()[1].state.availability.readable(), "{why}: it is up");
        vfs.release(handle);
        verify(&rig, vfs, 0, 1, why);
    }
}

/// Regression: as above, for an NSD that takes over the strips of one that is being deleted.
#[test]
fn a_block_written_while_an_heir_is_compared_keeps_its_strip_there() {
    let rig = quiet_rig(3);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(200_000, 1));
    vfs.fsync(handle).expect("synced");
    let layout = layout_of(&vfs, ino);
    // The heir is listed after its partner, so that the partner's next listing is the one that
    // tells what the others have.
    let (gone, partner, heir) = (SlotIndex(0), SlotIndex(1), SlotIndex(2));
    let is_theirs = |block: &u64| {
        let slots = vfs.mount.array.io.nsds().stripe(&layout, BlockIndex(*block)).expect("placed");
        slots.contains(&gone) && slots.contains(&partner)
    };
    let block = (1..100).find(is_theirs).expect("every third block is");
    let partners = [&rig.nsds[0], &rig.nsds[1]];
    let order = Order::force(layout.object, block, &rig.nsds[usize::from(heir.0)], &partners);
    strake_env::thread::scope(|scope| {
        scope.spawn(|| order.write(&vfs, ino, handle));
        vfs.manager.delete_nsd(Deletion { nsd: NsdId(1), rate: 0 }).expect("begins");
    });
    vfs.fsync(handle).expect("synced");
    vfs.release(handle);
    wait_for_end(&vfs);
    assert_eq!(vfs.manager.deletion(), Ok(None), "it is deleted");
    verify(&rig, vfs, 0b1, block, "deleted");
}
