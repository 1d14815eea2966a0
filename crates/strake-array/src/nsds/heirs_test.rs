//! A client's word that an heir lacks something, and the manager that forgets such words.

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use strake_env::ManualClock;
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::sync::Mutex;
use strake_proto::layout::NsdStatus;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_proto::{ClientId, ClusterId, NsdId, PoolMap, Timestamp};

/// Metadata that holds up the first word.
struct Slow {
    known: Configuration,
    words: AtomicUsize,
    begun: Mutex<Sender<()>>,
    goes_on: Mutex<Receiver<()>>,
}

impl MetaPort for Slow {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Configuration(Box::new(self.known.clone())))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        assert_eq!(OfDeletion::of(&entry.op), Some(OfDeletion::HeirMissed));
        if self.words.fetch_add(1, Ordering::SeqCst) == 0 {
            self.begun.lock().send(()).expect("heard");
            self.goes_on.lock().recv().expect("goes on");
        }
        Ok(MetaReply::Done)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_word_that_the_manager_forgot_on_its_way_is_said_again() {
    let mut pool = PoolMap::new((0..4).map(|at| (NsdId(at + 1), at)));
    pool.slots[1].state.status = NsdStatus::BeingEmptied;
    let known = Configuration {
        cluster: ClusterId([7; 16]),
        name: "tests".to_owned(),
        code: "2x".parse().expect("a code"),
        block_size: 1 << 20,
        pool: pool.clone(),
        created: Timestamp { seconds: 1, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    };
    let ((begun, begins), (go_on, goes_on)) = (channel(), channel());
    let (begun, goes_on) = (Mutex::new(begun), Mutex::new(goes_on));
    let meta = Arc::new(Slow { known, words: AtomicUsize::new(0), begun, goes_on });
    let port = Arc::clone(&meta) as Arc<dyn MetaPort>;
    let clock = Arc::new(ManualClock::default());
    let mut set =
        NsdSet::new(pool, Code { data: 1, parity: 1 }, Vec::new(), port, ClientId(5), clock);
    set.use_grants(1);
    let set = &set;
    strake_env::thread::scope(|scope| {
        scope.spawn(|| set.heir_missed(SlotIndex(2)).expect("told"));
        begins.recv().expect("a word is on its way");
        let (followed, follows) = channel();
        scope.spawn(move || {
            set.follow_pool().expect("followed");
            let _ = followed.send(());
        });
        // It waits for the word, or does not.
        let _ = follows.recv_timeout(Duration::from_millis(100));
        go_on.send(()).expect("heard");
    });
    set.heir_missed(SlotIndex(2)).expect("told");
    assert_eq!(meta.words.load(Ordering::SeqCst), 2, "the second miss was told, too");
    set.heir_missed(SlotIndex(3)).expect("told");
    assert_eq!(meta.words.load(Ordering::SeqCst), 2, "one word is enough");
}
