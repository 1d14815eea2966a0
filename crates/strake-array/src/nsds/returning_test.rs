//! How long an NSD that went is expected back, and what becomes of the calls that it left open.

use super::*;
use std::sync::Arc;
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::sync::Mutex;
use strake_env::{ManualClock, thread};
use strake_proto::meta::{Configuration, MetaEntry, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};
use strake_proto::{
    BlockIndex, ClientId, ClusterId, ErrorKind, ObjectId, PoolMap, StripIndex, StripKey, Timestamp,
};
use strake_testing::MemoryNsd;

/// Metadata that knows the pool, and agrees to everything.
struct Agreeable(Configuration);

impl MetaPort for Agreeable {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Configuration(Box::new(self.0.clone())))
    }

    fn apply(&self, _: &MetaEntry) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

fn set_of(ports: Vec<Option<Arc<dyn NsdPort>>>, clock: &Arc<ManualClock>) -> NsdSet {
    let pool = PoolMap::new((0..ports.len() as u32).map(|at| (NsdId(at + 1), at)));
    let ports = (0..).map(SlotIndex).zip(ports).collect();
    let (code, clock) = ("2x".parse().expect("a code"), Arc::clone(clock) as _);
    let known = Configuration {
        cluster: ClusterId([7; 16]),
        name: "tests".to_owned(),
        code,
        block_size: 1 << 20,
        pool: pool.clone(),
        created: Timestamp { seconds: 1, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    };
    NsdSet::new(pool, code, ports, Arc::new(Agreeable(known)), ClientId(1), clock)
}

/// An NSD whose server stands still in its reads.
struct Still {
    inner: Arc<MemoryNsd>,
    reads: Sender<()>,
    /// Closed by [`NsdPort::abandon`].
    held: Mutex<Option<Sender<()>>>,
    ends: Mutex<Receiver<()>>,
}

impl NsdPort for Still {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        if !matches!(request, NsdRequest::Read { .. }) {
            return self.inner.call(context, request, send, receive);
        }
        self.reads.send(()).expect("the test waits");
        self.ends.lock().recv().expect_err("nothing is sent");
        Err(ErrorKind::Unreachable.into())
    }

    fn abandon(&self) {
        self.held.lock().take();
    }
}

#[test]
fn calls_of_an_nsd_end_when_it_is_out_of_use() {
    let leaves: [fn(&NsdSet); 2] =
        [|set| set.leave(NsdId(1)), |set| set.note(SlotIndex(0)).expect("one may be away")];
    for leave in leaves {
        let ((reads, read), (held, ends)) = (channel(), channel());
        let (held, ends) = (Mutex::new(Some(held)), Mutex::new(ends));
        let still = Still { inner: MemoryNsd::new(NsdId(1)), reads, held, ends };
        let ports = vec![Some(Arc::new(still) as _), Some(MemoryNsd::new(NsdId(2)) as _)];
        let set = &set_of(ports, &Arc::default());
        thread::scope(|scope| {
            let key = StripKey {
                fs: set.fs(),
                object: ObjectId(3),
                block: BlockIndex(0),
                strip: StripIndex(0),
            };
            let request = NsdRequest::Read { key, version: None, offset: 0, length: 0 };
            let call = scope.spawn(move || set.call(SlotIndex(0), &request, &[], &mut []));
            read.recv().expect("it is under way");
            leave(set);
            call.join().expect("no panic").expect_err("nobody has answered");
        });
    }
}

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn an_nsd_is_expected_back_for_a_while_after_it_went() {
    let port = |at| Some(MemoryNsd::new(NsdId(at)) as Arc<dyn NsdPort>);
    let clock = Arc::<ManualClock>::default();
    let set = set_of(vec![port(1), port(2), None], &clock);
    let [first, second, third] = [0, 1, 2].map(SlotIndex);
    assert!(!set.availability(third).readable());
    assert!(set.went_within(LIMIT), "the third one may have gone just before");
    clock.advance(LIMIT);
    assert!(!set.went_within(LIMIT), "the third one is not there");

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
