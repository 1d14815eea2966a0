//! Small blocks that are written together, over NSDs that take them at once, take them one by one,
//! refuse some, or are away.

use super::super::padded_bytes;
use super::super::stripe_io_test::{Bench, bench, data, io_over_all, io_through};
use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_proto::ObjectId;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply};
use strake_testing::MemoryNsd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Takes all strips.
    All,
    /// Knows no request with several strips.
    Old,
    /// Has no room.
    Full,
    /// Is away.
    Gone,
}

/// An NSD that takes strips in its own way.
struct Picky {
    inner: Arc<MemoryNsd>,
    way: Way,
    writes: AtomicUsize,
}

impl NsdPort for Picky {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let is_many = matches!(request, NsdRequest::WriteMany { .. });
        if is_many || matches!(request, NsdRequest::Write { .. }) {
            self.writes.fetch_add(1, Ordering::Relaxed);
            match self.way {
                Way::Old if is_many => return Err(ErrorKind::NotSupported.into()),
                Way::Full => return Err(ErrorKind::NoSpace.into()),
                Way::Gone => return Err(ErrorKind::Unreachable.into()),
                Way::Old | Way::All => {}
            }
        }
        self.inner.call(context, request, send, receive)
    }
}

/// Small blocks of many objects.
struct Blocks {
    layouts: Vec<ObjectLayout>,
    contents: Vec<Vec<u8>>,
}

impl Blocks {
    fn new(rng: &mut Rng, bench: &Bench, count: u64) -> Blocks {
        let layout =
            |at| ObjectLayout { object: ObjectId(100 + at), key: at as u32, ..bench.layout };
        let layouts: Vec<_> = (0..count).map(layout).collect();
        let mut content = |_| {
            let length = 1 + rng.index(SMALL_BLOCK_BYTES);
            data(rng, length)
        };
        let contents = (0..count).map(&mut content).collect();
        Blocks { layouts, contents }
    }

    fn write(&self, io: &StripeIo) -> Vec<Result<Written>> {
        let padded = |(layout, content): (&ObjectLayout, &Vec<u8>)| {
            let mut padded = vec![0; padded_bytes(layout.code, content.len() as u32)];
            padded[..content.len()].copy_from_slice(content);
            padded
        };
        let padded: Vec<Vec<u8>> = self.layouts.iter().zip(&self.contents).map(padded).collect();
        let block = |at: usize| SmallBlock {
            layout: &self.layouts[at],
            block: BlockIndex(0),
            block_bytes: self.contents[at].len() as u32,
            bytes: &padded[at],
            stable: Version::NONE,
        };
        io.write_blocks(&(0..padded.len()).map(block).collect::<Vec<_>>())
    }
}

#[test]
fn blocks_that_are_written_together_are_read_alone_whatever_an_nsd_makes_of_them() {
    for seed in test_seeds(0, 20 * test_scale()) {
        let mut rng = Rng::new(seed);
        let code = ["1", "2x", "4+2p", "3x"][rng.index(4)].parse().expect("a code");
        for way in [Way::All, Way::Old, Way::Full, Way::Gone] {
            let bench = bench(code, 7);
            let picky = |(at, inner): (usize, &Arc<MemoryNsd>)| {
                let way = if at == 1 { way } else { Way::All };
                Arc::new(Picky { inner: Arc::clone(inner), way, writes: AtomicUsize::new(0) })
            };
            let ports: Vec<_> = bench.nsds.iter().enumerate().map(picky).collect();
            let as_port = |port: &Arc<Picky>| Arc::clone(port) as Arc<dyn NsdPort>;
            let io = io_through(&bench, 1, ports.iter().map(as_port).collect());
            let count = rng.below(STRIPS_MAX as u64 + 1);
            let blocks = Blocks::new(&mut rng, &bench, count);
            let context = format!("seed {seed}, {code}, {way:?}");
            let written = blocks.write(&io);
            assert_eq!(written.len(), count as usize, "{context}");
            // Another client reads what was accepted.
            let reader = io_over_all(&bench, 2);
            for ((layout, content), written) in
                blocks.layouts.iter().zip(&blocks.contents).zip(written)
            {
                let length = content.len() as u32;
                let slots = reader.nsds().stripe(layout, BlockIndex(0)).expect("placed");
                let of_block = StripeCode::of_block(code, length.into());
                let has_picky =
                    of_block.positions().any(|at| slots[usize::from(at.0)] == SlotIndex(1));
                let Ok(Written { version, lacks }) = written else {
                    assert!(has_picky && way != Way::All && way != Way::Old, "{context}");
                    assert!(way == Way::Full || code.parity == 0, "{context}");
                    continue;
                };
                assert!(way != Way::Full || !has_picky, "{context}: it has no room");
                assert_eq!(lacks != 0, way == Way::Gone && has_picky, "{context}");
                let mut out = vec![9; SMALL_BLOCK_BYTES];
                let access = super::super::Access::Exclusive;
                let none = Version::NONE;
                let found = reader.read(layout, BlockIndex(0), none, length, 0, &mut out, access);
                let found = found.expect("reads").expect("written");
                // A block that lacks a strip may be written anew by its reader.
                assert!(lacks != 0 || found.version == version, "{context}");
                assert_eq!(found.block_bytes, length, "{context}");
                assert!(out[..content.len()] == content[..], "{context}");
            }
            for (at, port) in ports.iter().enumerate() {
                let writes = port.writes.load(Ordering::Relaxed);
                let most = if at == 1 && way == Way::Old { count as usize + 1 } else { 1 };
                assert!(writes <= most, "{context}: {writes} requests to one NSD");
            }
        }
    }
}
