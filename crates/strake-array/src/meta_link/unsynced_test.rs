//! The list before, during and after a sync.

use crate::meta_link::MetaLink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use strake_env::{Clock, RealClock};
use strake_observe::Observe;
use strake_proto::meta::{MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::{ClientId, ErrorKind, Ino, Result};

/// Metadata that looks at what is listed, and makes a change, while it syncs.
#[derive(Default)]
struct Metadata {
    link: OnceLock<Weak<MetaLink>>,
    fails: AtomicBool,
}

impl MetaPort for Metadata {
    fn query(&self, _: &MetaQuery) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn apply(&self, _: &MetaEntry) -> Result<MetaReply> {
        Ok(MetaReply::Done)
    }

    fn sync(&self) -> Result<()> {
        let link = self.link.get().and_then(Weak::upgrade).expect("it is there");
        assert_eq!(listed(&link), [1, 2], "nothing of it is durable yet");
        change(&link, 2);
        change(&link, 3);
        if self.fails.load(Ordering::SeqCst) { Err(ErrorKind::Io.into()) } else { Ok(()) }
    }
}

fn change(link: &MetaLink, ino: u64) {
    let op = MetaOp::RemoveXattr { ino: Ino(ino), name: b"user.a".to_vec() };
    link.apply(op).expect("applied");
}

fn listed(link: &MetaLink) -> Vec<u64> {
    let mut listed: Vec<u64> = link.unsynced_inodes().into_iter().map(|ino| ino.0).collect();
    listed.sort_unstable();
    listed
}

/// The list after a sync that fails if `fails`.
fn after_a_sync(fails: bool) -> Vec<u64> {
    let clock = RealClock::shared() as Arc<dyn Clock>;
    let observe = Observe::new(Arc::clone(&clock), 16);
    let port = Arc::<Metadata>::default();
    port.fails.store(fails, Ordering::SeqCst);
    let link = MetaLink::new(Arc::clone(&port) as Arc<dyn MetaPort>, ClientId(1), clock, observe);
    let link = Arc::new(link);
    port.link.set(Arc::downgrade(&link)).expect("once");
    change(&link, 1);
    change(&link, 2);
    link.apply(MetaOp::NewObject { ino: Ino(4) }).expect("applied");
    assert_eq!(link.sync().is_err(), fails);
    listed(&link)
}

#[test]
fn what_is_not_durable_is_listed_also_while_a_sync_is_under_way() {
    assert_eq!(after_a_sync(false), [2, 3], "what was changed meanwhile");
    assert_eq!(after_a_sync(true), [1, 2, 3]);
}
