//! How long an NSD that went is expected back.

use super::*;
use std::sync::Arc;
use strake_env::ManualClock;
use strake_proto::meta::{MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::NsdPort;
use strake_proto::{ClientId, ErrorKind, PoolMap};
use strake_testing::MemoryNsd;

/// Metadata that nobody needs here.
struct Nowhere;

impl MetaPort for Nowhere {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Err(ErrorKind::Unreachable.into())
    }

    fn apply(&self, _: &MetaEntry) -> Result<MetaReply> {
        Err(ErrorKind::Unreachable.into())
    }

    fn sync(&self) -> Result<()> {
        Err(ErrorKind::Unreachable.into())
    }
}

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn an_nsd_is_expected_back_for_a_while_after_it_went() {
    let pool = PoolMap::new((0..3).map(|at| (NsdId(at + 1), at)));
    let port = |at: u32| (at < 2).then(|| MemoryNsd::new(NsdId(at + 1)) as Arc<dyn NsdPort>);
    let ports = (0..3).map(|at| (SlotIndex(at as u16), port(at))).collect();
    let clock = Arc::new(ManualClock::default());
    let code = "2x".parse().expect("a code");
    let set =
        NsdSet::new(pool, code, ports, Arc::new(Nowhere), ClientId(1), Arc::clone(&clock) as _);
    let [first, second, third] = [0, 1, 2].map(SlotIndex);
    assert!(!set.availability(third).readable());
    assert!(!set.went_within(LIMIT), "the third one was never there");

    set.set_availability(first, NsdAvailability::Down);
    assert!(set.went_within(LIMIT));
    clock.advance(LIMIT / 2);
    set.set_availability(first, NsdAvailability::Unrecovered);
    set.set_availability(first, NsdAvailability::Recovering);
    clock.advance(LIMIT / 2 - Duration::from_nanos(1));
    assert!(set.went_within(LIMIT));
    clock.advance(Duration::from_nanos(1));
    assert!(!set.went_within(LIMIT), "it is brought up to date, and has been away for as long");

    set.set_availability(second, NsdAvailability::Down);
    assert!(set.went_within(LIMIT));
    set.set_availability(second, NsdAvailability::Up);
    assert!(!set.went_within(LIMIT), "the one that went a moment ago is back");
}
