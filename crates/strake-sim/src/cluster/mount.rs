//! A mount: the product's client over its sessions with the nodes, without a kernel above it.

use super::node::Ask;
use super::place::{FS, NODES, credentials, introduce, locate, place, places};
use std::sync::Arc;
use std::time::Duration;
use strake_array::{Array, ArrayOptions};
use strake_client::{Settings, StrakeVfs, Tokens};
use strake_crew::{MountLimits, MountWays, Place, Search};
use strake_env::{Clock, RealClock};
use strake_net::{Endpoint, Introduction, SessionEnv, SessionLimits, ask_node};
use strake_observe::Observe;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_proto::{ByteCount, ClientId, Error, ErrorKind, Result, SlotIndex};
use strake_token::port::ToClient;

/// For a node to greet, to answer a quick question, and to let a mount in.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const QUICK_MAX: Duration = Duration::from_secs(10);
const OPEN_MAX: Duration = Duration::from_secs(60);
/// Calls to the metadata wait that long for a node that leads.
const LEADER_WAIT_MAX: Duration = Duration::from_secs(300);
/// For an NSD to answer: as with the usual setting `nsd_io_limit`.
const NSD_CALL_MAX: Duration = Duration::from_secs(25);

/// How often the leader is told of the end of a mount.
const CLOSE_ATTEMPTS: u32 = 20;
const CLOSE_PAUSE: Duration = Duration::from_secs(2);

/// See the head of this file.
pub(crate) struct Mount {
    pub(crate) vfs: Arc<StrakeVfs>,
    pub(crate) observe: Arc<Observe>,
    client: ClientId,
    ways: Arc<MountWays>,
    search: Arc<Search>,
}

/// Asks a node something.
fn ask(place: &Place, ask: Ask, limit: Duration) -> Result<u64> {
    let endpoint = Endpoint::Tcp(place.address);
    let introduction = Introduction::from(credentials());
    let answer = ask_node(&endpoint, &introduction, &ask.encode(), CONNECT_MAX, limit)?;
    match answer.split_first() {
        Some((0, number)) => {
            let number = number.try_into().map_err(|_| Error::from(ErrorKind::Corrupt))?;
            Ok(u64::from_le_bytes(number))
        }
        Some((_, detail)) => {
            Err(Error::new(ErrorKind::Unreachable, String::from_utf8_lossy(detail).into_owned()))
        }
        None => Err(ErrorKind::Corrupt.into()),
    }
}

fn search(observe: &Arc<Observe>) -> Arc<Search> {
    let candidates = || Ok(NODES.map(place).collect());
    let serves = |place: &Place| ask(place, Ask::Serves, QUICK_MAX).map(|answer| answer == 1);
    Search::new(&introduce(), FS, candidates, serves, Arc::clone(observe) as _)
}

impl Mount {
    /// Mounts the file system on a host. This runs in the mount's process. `named` learns the name
    /// under which the file system knows the mount, before the mount can do anything.
    ///
    /// # Errors
    /// `Unreachable` if no node leads that would let it in.
    pub(crate) fn open(host: usize, named: &dyn Fn(ClientId)) -> Result<Mount> {
        let observe = Observe::new(RealClock::shared(), 256);
        let search = search(&observe);
        let leader = search.find()?;
        let last = ask(&leader, Ask::Last(host), QUICK_MAX)?;
        let client = ClientId(ask(&leader, Ask::Open(host, last), OPEN_MAX)?);
        named(client);
        let env = SessionEnv {
            introduction: Introduction::from(credentials()),
            clock: RealClock::shared(),
            waits: Arc::clone(&observe) as _,
            process: None,
            links: None,
        };
        let limits = MountLimits {
            leader_wait_max: LEADER_WAIT_MAX,
            nsd: SessionLimits { call: NSD_CALL_MAX, ..SessionLimits::NSD },
        };
        let ways =
            MountWays::open(&search, (FS, client), (places(), locate()), limits, &env, &observe)?;
        let ways = Arc::new(ways);
        let vfs = start(&ways, client, &observe).inspect_err(|_| ways.stop())?;
        Ok(Mount { vfs, observe, client, ways, search })
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.ways.tokens
    }

    /// The metadata as this mount sees it.
    pub(crate) fn meta(&self) -> &dyn MetaPort {
        &*self.ways.meta
    }

    /// Ends in order. False if the mount was declared dead before.
    pub(crate) fn end(&self) -> Result<bool> {
        let saved = self.vfs.shutdown();
        self.ways.stop();
        if self.tokens().is_dead() {
            return Ok(false);
        }
        saved?;
        let close = || ask(&self.search.find()?, Ask::Close(self.client), OPEN_MAX).map(|_| true);
        let mut closed = close();
        for _ in 0..CLOSE_ATTEMPTS {
            if closed.is_err() {
                // A node tells the leader again later.
                RealClock.sleep(CLOSE_PAUSE);
                closed = close();
            }
        }
        closed
    }

    /// The process was killed: nobody hears anything of it any more. Its threads end, and nothing
    /// is flushed.
    pub(crate) fn kill(&self) {
        self.ways.tokens.declared_dead();
        // It says that this client is dead.
        let _ = self.vfs.shutdown();
        self.ways.stop();
    }
}

/// As the product's daemon starts a client.
fn start(
    ways: &Arc<MountWays>,
    client: ClientId,
    observe: &Arc<Observe>,
) -> Result<Arc<StrakeVfs>> {
    let MetaReply::Configuration(known) = ways.meta.query(&MetaQuery::Configuration)? else {
        return Err(Error::new(ErrorKind::Internal, "not a configuration"));
    };
    let slots = (0..).map(SlotIndex).zip(&known.pool.slots);
    let of_find = Arc::clone(ways);
    let array = Array::open(ArrayOptions {
        meta: Arc::clone(&ways.meta),
        nsds: slots.map(|(at, slot)| (at, ways.port(slot.nsd))).collect(),
        clock: RealClock::shared(),
        observe: Arc::clone(observe),
        client,
        io_threads: 2,
        beside_others: true,
        find: Some(Arc::new(move |nsd| of_find.port(nsd))),
    })?;
    let settings = Settings { page_pool: ByteCount::mib(3), ..Settings::test_min() };
    StrakeVfs::start_with_tokens(array, settings, Arc::clone(&ways.tokens))
}
