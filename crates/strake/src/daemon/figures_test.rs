//! Listings while the metadata or an NSD does not answer. The doubles hold up every question until
//! the test lets them go, and the listing has been answered by then.

use super::*;
use strake_env::RealClock;
use strake_env::channel::{Receiver, Sender, channel};
use strake_proto::meta::{MetaEntry, MetaQuery, MetaReply};
use strake_proto::{ClusterId, PoolMap};

/// Lets questions through, or holds them up until it is dropped.
struct Gate(Mutex<Option<Receiver<()>>>);

impl Gate {
    fn open() -> Arc<Gate> {
        Arc::new(Gate(Mutex::new(None)))
    }

    /// Holds up the next question until what is returned is dropped.
    fn close(&self) -> Sender<()> {
        let (sender, receiver) = channel();
        *self.0.lock() = Some(receiver);
        sender
    }

    fn pass(&self) {
        let held = self.0.lock().take();
        let _ = held.map(|held| held.recv());
    }
}

struct HeldMeta(Arc<Gate>);

impl MetaPort for HeldMeta {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        self.0.pass();
        Ok(MetaReply::Configuration(Box::new(described("new"))))
    }

    fn apply(&self, _: &MetaEntry) -> Result<MetaReply> {
        Err(ErrorKind::NotSupported.into())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

struct HeldNsd(Arc<Gate>);

impl NsdPort for HeldNsd {
    fn call(&self, _: NsdContext, _: &NsdRequest, _: &[u8], _: &mut [u8]) -> Result<NsdReply> {
        self.0.pass();
        let (cluster, nsd) = (ClusterId::default(), NsdId(1));
        let (boot, recovered, strips) = (1, 1, 7);
        let status = NsdStatusReply { cluster, nsd, boot, recovered, total: 9, free: 8, strips };
        Ok(NsdReply::Status(status))
    }
}

fn described(name: &str) -> Configuration {
    Configuration {
        cluster: ClusterId::default(),
        name: name.to_owned(),
        code: "4+2p".parse().expect("a code"),
        block_size: 1 << 22,
        pool: PoolMap::new([(NsdId(1), 1)]),
        created: Default::default(),
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    }
}

struct Rig {
    figures: Figures,
    sources: Sources,
    meta: Arc<Gate>,
    space: Arc<Gate>,
    nsd: Arc<Gate>,
}

impl Rig {
    fn new() -> Rig {
        let [meta, space, nsd] = [(); 3].map(|()| Gate::open());
        let clock = RealClock::shared();
        let waiters = Arc::new(Waiters::new(Arc::clone(&clock)));
        let gate = Arc::clone(&space);
        let sources = Sources {
            meta: Arc::new(HeldMeta(Arc::clone(&meta))),
            space: Arc::new(move || {
                gate.pass();
                Ok(StatFs { total: 100, ..StatFs::default() })
            }),
            holders: Arc::new(|| Ok(vec![NsdId(1)])),
            context: NsdContext::default(),
        };
        let figures = Figures::new(described("at the start"), &clock, &waiters);
        Rig { figures, sources, meta, space, nsd }
    }

    /// A listing that waits as long as it takes, or not at all.
    fn look(&mut self, patient: bool, should_answer: bool) -> Seen {
        self.figures.wait_max = if patient { Duration::MAX } else { Duration::ZERO };
        let port = Some(Arc::new(HeldNsd(Arc::clone(&self.nsd))) as Arc<dyn NsdPort>);
        let listed = Listed { nsd: NsdId(1), name: "nsd1".to_owned(), port, should_answer };
        self.figures.look(&self.sources, &[listed]).expect("a listing")
    }
}

fn whats(seen: &Seen) -> Vec<(&str, bool)> {
    seen.late.iter().map(|late| (late.what.as_str(), late.as_of_seconds.is_some())).collect()
}

#[test]
fn a_listing_shows_what_is_so_now_if_everything_answers() {
    let mut rig = Rig::new();
    let seen = rig.look(true, true);
    assert_eq!((seen.configuration.name.as_str(), seen.late.len()), ("new", 0));
    assert_eq!(seen.space.map(|space| space.total), Some(100));
    assert_eq!(seen.holders, Some(vec![NsdId(1)]));
    assert_eq!(seen.nsds[&NsdId(1)].strips, 7);
}

#[test]
fn a_listing_comes_while_everything_is_held_up_and_says_how_old_it_is() {
    let mut rig = Rig::new();
    rig.look(true, true);
    let held = [rig.meta.close(), rig.space.close(), rig.nsd.close()];
    let seen = rig.look(false, true);
    // The holders may or may not have answered a listing that does not wait.
    let mut late = whats(&seen);
    late.retain(|(what, _)| !what.contains("holders"));
    let wanted = ["the configuration", "the space and the inodes", "the space of nsd1"];
    assert_eq!(late, wanted.map(|what| (what, true)));
    assert_eq!((seen.configuration.name.as_str(), seen.nsds[&NsdId(1)].free), ("new", 8));
    assert_eq!(seen.space.map(|space| space.total), Some(100));
    // Nothing old is shown of an NSD that is out of use anyway.
    assert!(rig.look(false, false).nsds.is_empty());
    drop(held);
    assert_eq!(rig.look(true, true).late, Vec::new());
}

#[test]
fn the_first_listing_comes_too_and_lacks_what_nobody_has_told() {
    let mut rig = Rig::new();
    let held = [rig.meta.close(), rig.space.close(), rig.nsd.close()];
    let seen = rig.look(false, true);
    assert_eq!(seen.configuration.name, "at the start");
    assert_eq!((seen.space, seen.nsds.len()), (None, 0));
    let late = whats(&seen);
    assert!(late.contains(&("the space and the inodes", false)), "{late:?}");
    assert!(late.contains(&("the space of nsd1", false)), "{late:?}");
    drop(held);
}
