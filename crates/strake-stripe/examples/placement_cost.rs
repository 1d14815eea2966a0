//! Prints the cost of one placement for pools of several sizes.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;
use strake_proto::{BlockIndex, Code, LayoutMap, LayoutVersion, ObjectId, SlotIndex};
use strake_stripe::Placement;

fn main() {
    let code = Code { data: 8, parity: 3 };
    for (slots, groups) in
        [(11, 11), (24, 24), (24, 4), (100, 100), (100, 10), (128, 128), (1000, 1000)]
    {
        let members = (0..slots).map(|slot| (SlotIndex(slot), u32::from(slot % groups))).collect();
        let layout = LayoutMap { version: LayoutVersion(1), members };
        let placement = Placement::new(&layout, code).expect("wide enough");
        let calls = 200_000u64;
        let (mut sum, start) = (0u64, Instant::now());
        for block in 0..calls {
            sum += u64::from(placement.stripe(ObjectId(1), BlockIndex(block))[3].0);
        }
        let nanos = start.elapsed().as_nanos() as f64 / calls as f64;
        println!("{slots:5} slots, {groups:5} failure groups: {nanos:7.1} ns per stripe ({sum})");
    }
}
