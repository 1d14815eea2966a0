//! The crew of a file system works for all its mounts, on the node that leads. It has their leases,
//! their tokens, the metadata that they use, and repair.
//!
//! **Start.** The metadata and the tokens are served as soon as the disks with the metadata are
//! open. Mounts that lived through a restart of this process reassert what they hold. The manager
//! begins later ([`Crew::work`]), because it needs the NSDs of other nodes too. Until it has put
//! right what the mounts before have left, the authority grants nothing.
//!
//! **The manager's own client** takes tokens like every mount, so repair works beside mounts. To
//! the authority it is one that has joined before each start and died: so nothing is granted until
//! it is buried. On the NSDs its epoch is the leader's term. So what an earlier leader's manager
//! has sent is refused before this one begins.
//!
//! **Death.** A mount whose lease is over is declared dead. When no NSD publishes anything of it
//! any more, it is noted here, and the node's tender is woken, which has it buried
//! ([`Crew::dead`], [`Crew::work`]).

use crate::NsdPlace;
use crate::ways::NsdWays;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_array::{Array, ArrayOptions, Exclusion};
use strake_client::StrakeVfs;
use strake_client::tokens::{FILES_MAX, Tokens};
use strake_env::sync::{Condvar, Mutex};
use strake_env::{Clock, RealClock};
use strake_lease::membership::Reason;
use strake_manager::leases::{Deaths, LeaseOptions, LeaseService};
use strake_manager::{HotTokens, Manager, TokenService, after_crash};
use strake_net::{Door, SessionLimits, TokenPort};
use strake_observe::Observe;
use strake_proto::meta::{MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};
use strake_proto::{
    ByteCount, ClientId, Error, ErrorKind, FsId, GrantNumber, Ino, MapVersion, NsdId, Result,
    SlotIndex,
};
use strake_token::authority::Times;
use strake_token::message::{Reply, Request, Term};
use strake_token::port::ToClient;
use tracing::{info, warn};

/// The manager's own client.
const CREW: ClientId = ClientId(1);
/// The limits of the ways for leases. A lease that is under way for longer is sent again.
pub const LEASE_LIMITS: SessionLimits = SessionLimits {
    connect: Duration::from_secs(2),
    call: Duration::from_secs(3),
    absent: Duration::ZERO,
    broken: Duration::ZERO,
    ..SessionLimits::NSD
};
/// A client keeps what it was granted at least that long, so that it gets some work done.
const HOLD_MIN: Duration = Duration::from_millis(1);
/// A revoke that is not answered is sent again after that long.
const REPEAT: Duration = Duration::from_millis(500);

/// See the head of this file.
pub struct Crew {
    service: Arc<TokenService>,
    leases: Arc<LeaseService>,
    undertaker: Arc<Undertaker>,
    nsds: Arc<NsdWays>,
    /// Ways to the NSDs for leases.
    lease_ways: NsdWays,
    observe: Arc<Observe>,
    clock: Arc<dyn Clock>,
    page_pool: ByteCount,
    /// Held while mounts are buried.
    working: Mutex<Option<Arc<Working>>>,
}

/// The manager, once the NSDs are there.
struct Working {
    /// Declared before the client, which it uses, so that its threads end first.
    manager: Manager,
    vfs: Arc<StrakeVfs>,
}

/// What a crew is started with.
pub struct Lead {
    /// The clients of before, which may live.
    pub mounts: Vec<ClientId>,
    /// The NSDs of the file system.
    pub all: Vec<NsdId>,
    /// Ways to them for the manager's client, and for leases.
    pub nsds: NsdWays,
    pub leases: NsdWays,
    /// Signalled when a client is dead: [`Crew::dead`].
    pub bell: Arc<Condvar>,
    /// The page pool of the manager's client. It reads and writes only what repair needs.
    pub page_pool: ByteCount,
    /// When this node was chosen, by the real clock.
    pub since: Duration,
    /// Whether this node still leads for certain.
    pub leads: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Collects the dead until they are buried.
struct Undertaker {
    service: Arc<TokenService>,
    dead: Mutex<BTreeSet<ClientId>>,
    bell: Arc<Condvar>,
}

impl Deaths for Undertaker {
    fn declared(&self, _: ClientId, _: Reason) {}

    fn dead(&self, client: ClientId) {
        self.service.hear_no_more(&BTreeSet::from([client]));
        self.dead.lock().insert(client);
        self.bell.notify_all();
    }

    /// The mounts turn to the other leader by themselves.
    fn deposed(&self, _: strake_proto::Term) {}
}

/// A way to an NSD for the manager's client in one term.
struct InTerm {
    port: Arc<dyn NsdPort>,
    nsd: NsdId,
    leases: Arc<LeaseService>,
}

impl NsdPort for InTerm {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        // A server without a lease serves nobody. A node that stands still would not even say so,
        // and repair would wait for the whole limit of a call.
        if self.leases.has_lapsed(self.nsd) {
            let detail = format!("the server of NSD {} has no lease", self.nsd);
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
        let context = NsdContext { epoch: self.leases.epoch(), ..context };
        self.port.call(context, request, send, receive)
    }

    fn abandon(&self) {
        self.port.abandon();
    }
}

fn way_of_crew(nsds: &NsdWays, leases: &Arc<LeaseService>, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
    let (port, leases) = (nsds.port(nsd, |_, env| env)?, Arc::clone(leases));
    Some(Arc::new(InTerm { port, nsd, leases }) as Arc<dyn NsdPort>)
}

/// Lets clients of the door talk to the services.
struct Behind(Arc<TokenService>, Arc<LeaseService>);

impl TokenPort for Behind {
    fn attach(&self, client: ClientId, way: Arc<dyn ToClient>) -> Result<Term> {
        self.1.check_leads()?;
        self.0.attach(client, way)
    }

    fn renew(&self, client: ClientId) -> Result<()> {
        self.1.renew(client)
    }

    fn receive(&self, client: ClientId, term: Term, message: Request) -> Vec<Reply> {
        self.0.receive(client, term, message)
    }
}

impl Crew {
    /// Gives leases, and serves metadata and tokens behind `door`.
    ///
    /// # Errors
    /// The metadata's; when there are no more threads.
    pub fn start(
        fs: FsId,
        meta: Arc<dyn MetaPort>,
        lead: Lead,
        door: &Door,
        observe: &Arc<Observe>,
    ) -> Result<Crew> {
        let clock = RealClock::shared();
        let Lead { mounts, all, nsds, leases: ways, bell, page_pool, since, leads } = lead;
        let before: Vec<ClientId> = mounts.iter().copied().chain([CREW]).collect();
        let times = Times { hold_min: HOLD_MIN, repeat: REPEAT };
        let service = TokenService::start(
            &before,
            times,
            meta,
            Arc::clone(&clock),
            Arc::clone(observe) as _,
        )?;
        let (dead, tokens) = (Mutex::default(), Arc::clone(&service));
        let undertaker = Arc::new(Undertaker { service: tokens, dead, bell });
        let way = |nsd: &NsdId| Some((*nsd, ways.port(*nsd, |_, env| env)?));
        let options = LeaseOptions {
            // Terms of tokens rise, and are durable before they are used.
            term: strake_proto::Term(service.term().0),
            since,
            times: strake_lease::Times::CLUSTER,
            clients: mounts,
            own: vec![CREW],
            servers: all.iter().filter_map(way).collect(),
            floor: MapVersion(0),
            leads,
            clock: Arc::clone(&clock),
            waits: Arc::clone(observe) as _,
        };
        let leases = LeaseService::start(options, Arc::clone(&undertaker) as Arc<dyn Deaths>)?;
        let behind = Behind(Arc::clone(&service), Arc::clone(&leases));
        door.serve_tokens(fs, Arc::new(behind), Arc::clone(observe) as _)?;
        door.serve_meta(fs, leases.metadata(service.metadata()))?;
        let (observe, working) = (Arc::clone(observe), Mutex::new(None));
        let (nsds, lease_ways) = (Arc::new(nsds), ways);
        Ok(Crew {
            service,
            leases,
            undertaker,
            nsds,
            lease_ways,
            observe,
            clock,
            page_pool,
            working,
        })
    }

    /// The file system's NSDs are at these places from now on. One that is new gets a lease, and
    /// one that is not among them gets none any more.
    pub fn learn_places(&self, places: Vec<NsdPlace>) {
        let before = self.nsds.known();
        let now: Vec<NsdId> = places.iter().map(|place| place.nsd).collect();
        self.nsds.learn(places.clone());
        self.lease_ways.learn(places);
        let new = now.iter().filter(|nsd| !before.contains(nsd));
        for (nsd, port) in
            new.filter_map(|nsd| Some((*nsd, self.lease_ways.port(*nsd, |_, env| env)?)))
        {
            self.leases.attach(nsd, port);
        }
        before.iter().filter(|nsd| !now.contains(nsd)).for_each(|nsd| self.leases.detach(*nsd));
    }

    /// The manager's own client.
    pub fn client(&self) -> ClientId {
        CREW
    }

    /// The way to an NSD for the manager's client.
    pub fn port(&self, nsd: NsdId) -> Option<Arc<dyn NsdPort>> {
        way_of_crew(&self.nsds, &self.leases, nsd)
    }

    /// The files that were taken from mounts lately, at most `most`, and what waits for files.
    pub fn hot_tokens(&self, most: usize) -> HotTokens {
        self.service.hot(most)
    }

    /// True once the manager has begun.
    pub fn is_at_work(&self) -> bool {
        self.working.lock().is_some()
    }

    /// Those of the clients that are dead and not buried. Others that died left nothing.
    pub fn dead(&self, clients: &BTreeSet<ClientId>) -> BTreeSet<ClientId> {
        let mut dead = self.undertaker.dead.lock();
        dead.retain(|client| clients.contains(client));
        dead.clone()
    }

    /// Has the manager at work, and those of `mounts` buried that are dead. `bury` does both for
    /// the mounts that it is given, as [`Crew::work`] does, and notes that they are gone.
    ///
    /// # Errors
    /// Those of `bury`.
    pub fn attend(
        &self,
        mounts: &BTreeSet<ClientId>,
        bury: &dyn Fn(&BTreeSet<ClientId>) -> Result<()>,
    ) -> Result<()> {
        let mut dead = self.dead(mounts);
        loop {
            if self.is_at_work() && dead.is_empty() {
                return Ok(());
            }
            let buried = bury(&dead);
            // The manager begins when all leases of before are over. Others have died until then,
            // which it finds out only now.
            let before = std::mem::replace(&mut dead, self.dead(mounts));
            if buried.is_ok() || dead == before {
                return buried;
            }
        }
    }

    /// Takes NSDs out of use whose servers are silent, so that nobody waits for their answers. A
    /// server answers about its lease beside all else that it does. So one that has said nothing
    /// for most of a lease is cut off, or stands still.
    pub fn leave_out_silent(&self) {
        let Some(working) = self.working.lock().clone() else { return };
        let nsds = working.vfs.array().io.nsds();
        for slot in self.leases.silent().into_iter().filter_map(|nsd| nsds.slot_of(nsd)) {
            if nsds.is_noted(slot) {
                continue;
            }
            nsds.fail(slot);
            if let Err(error) = nsds.note(slot) {
                warn!(target: "disks", "NSD {} is silent: {error}", nsds.nsd(slot));
            }
        }
    }

    /// Has the manager at work, and frees what the mounts in `gone` held when what they left is put
    /// right. No NSD accepts anything of them by then.
    ///
    /// # Errors
    /// `Io` or `Unreachable` if too many NSDs are away; `TimedOut` if a mount of before does not
    /// say what it holds. The caller tries again.
    pub fn work(&self, gone: &BTreeSet<ClientId>) -> Result<()> {
        let mut working = self.working.lock();
        gone.iter().try_for_each(|client| self.leases.expel(*client))?;
        if working.is_none() {
            *working = Some(Arc::new(self.begin(gone)?));
        } else if let Some(working) = working.as_ref().filter(|_| !gone.is_empty()) {
            self.bury(&working.vfs, gone)?;
        }
        Ok(())
    }

    /// Begins the manager's work with the burial of those in `gone`, and of the manager before.
    fn begin(&self, gone: &BTreeSet<ClientId>) -> Result<Working> {
        self.leases.begun()?;
        // The manager before is over as well. Otherwise a mount that notes an NSD would wait for it
        // to follow, and this one, which notes what it does not find, for that mount.
        let all = gone.iter().copied().chain([CREW]).collect();
        self.service.hear_no_more(&all);
        let (nsds, leases) = (Arc::clone(&self.nsds), Arc::clone(&self.leases));
        let port = move |nsd: NsdId| way_of_crew(&nsds, &leases, nsd);
        let MetaReply::Configuration(known) =
            self.service.metadata().query(&MetaQuery::Configuration)?
        else {
            return Err(Error::new(ErrorKind::Internal, "not a configuration"));
        };
        let slots = (0..).map(SlotIndex).zip(&known.pool.slots);
        let array = Array::open(ArrayOptions {
            meta: self.service.metadata(),
            nsds: slots.map(|(at, slot)| (at, port(slot.nsd))).collect(),
            clock: Arc::clone(&self.clock),
            observe: Arc::clone(&self.observe),
            client: CREW,
            io_threads: 4,
            beside_others: true,
            find: Some(Arc::new(port)),
        })?;
        let (clock, observe) = (Arc::clone(&self.clock), Arc::clone(&self.observe));
        let way = self.service.way_of(CREW);
        let tokens = Tokens::new(self.service.term(), way, clock, observe, FILES_MAX);
        let settings = strake_client::Settings {
            page_pool: self.page_pool,
            flushers: 2,
            own_process: false,
            ..strake_client::Settings::default()
        };
        let vfs = StrakeVfs::start_with_tokens(Arc::clone(&array), settings, Arc::clone(&tokens))?;
        self.bury(&vfs, &all).map_err(|error| error.context("recovery at start"))?;
        self.service.join(CREW, tokens);
        // Nobody has told this client what was noted since it opened the array.
        array.io.nsds().follow_map()?;
        let exclusion = Arc::clone(&vfs) as Arc<dyn Exclusion>;
        let manager = Manager::start_beside(array, exclusion, Arc::clone(&self.service))?;
        Ok(Working { manager, vfs })
    }

    /// Puts right what dead clients left, and frees what they held.
    fn bury(&self, vfs: &StrakeVfs, gone: &BTreeSet<ClientId>) -> Result<()> {
        // The manager's own client has changes to make.
        let mounts = gone.iter().copied().filter(|client| *client != CREW);
        self.service.close(&mounts.collect())?;
        self.service.bury(gone, &|number: GrantNumber, of: &dyn Fn(Ino) -> bool| {
            let array = vfs.array();
            array.io.versions().raise(number);
            let report = after_crash::recover_files(array, of)?;
            if report.failed > 0 {
                let detail = format!("{} stripes cannot be rebuilt yet", report.failed);
                return Err(Error::new(ErrorKind::Io, detail));
            }
            let folded = vfs.fold(of)?;
            // The manager's client begins its next life in the metadata by itself.
            let mounts = gone.iter().copied().filter(|client| *client != CREW);
            mounts.into_iter().try_for_each(|client| self.leave(client))?;
            if report.stripes > 0 || folded > 0 {
                info!(
                    target: "recovery",
                    "{} stripes and {folded} small writes of mounts that are gone are put right",
                    report.stripes
                );
            }
            Ok(())
        })
    }

    /// The metadata forgets a client that will not come back.
    fn leave(&self, client: ClientId) -> Result<()> {
        let (op, time) = (MetaOp::Leave, self.clock.wall());
        self.service.metadata().apply(&MetaEntry { client, sequence: 0, time, op }).map(drop)
    }

    /// A new mount may use the file system. Returns when every NSD server knows it.
    ///
    /// # Errors
    /// `TimedOut` if an NSD server neither answers nor loses its lease.
    pub fn admit(&self, client: ClientId) -> Result<()> {
        self.service.admit(client);
        self.leases.join(client)
    }

    /// A mount has ended and says that it left nothing to put right. False if it was declared dead
    /// before: then its word does not count.
    ///
    /// # Errors
    /// The metadata's.
    pub fn closed(&self, client: ClientId) -> Result<bool> {
        if !self.leases.is_living(client) {
            return Ok(false);
        }
        self.leave(client)?;
        self.leases.ended(client);
        self.service.gone(client);
        Ok(true)
    }

    /// Has the manager do something, beside all mounts.
    ///
    /// # Errors
    /// `Unreachable` before it has begun; those of the work.
    pub fn manage<T>(&self, work: impl FnOnce(&Manager) -> Result<T>) -> Result<T> {
        let working = self.working.lock().clone();
        match working {
            Some(working) => work(&working.manager),
            None => Err(Error::new(ErrorKind::Unreachable, "the file system is not in use")),
        }
    }

    /// Ends the manager, the leases and the tokens. Requests that wait for them get errors. If this
    /// node does not lead any more (`is_deposed`), nobody waits for what only a leader can do.
    ///
    /// # Errors
    /// If something could not be made durable.
    pub fn finish(&self, is_deposed: bool) -> Result<()> {
        let stop_services = || {
            self.leases.stop();
            self.service.stop();
        };
        if is_deposed {
            stop_services();
        }
        let mut result = Ok(());
        if let Some(working) = self.working.lock().take() {
            working.manager.stop();
            result = working.vfs.shutdown().map(drop);
        }
        if !is_deposed {
            stop_services();
        }
        result
    }
}
