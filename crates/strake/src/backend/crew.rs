//! What a node that leads does for all mounts of one file system: their tokens, the metadata that
//! they use, and repair.
//!
//! **Start.** The metadata and the tokens are served as soon as the disks with the metadata are
//! open. Mounts that lived through a restart of this process reassert what they hold. The manager
//! begins later ([`Crew::work`]), because it needs the NSDs of other nodes too. Until it has put
//! right what the mounts before have left, the authority grants nothing.
//!
//! **The manager's own client** takes tokens like every mount, so repair works beside mounts. To
//! the authority it is one that has joined before each start and died: so nothing is granted until
//! it is buried.

use super::ways::NsdWays;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use strake_array::{Array, ArrayOptions, Exclusion};
use strake_client::StrakeVfs;
use strake_client::tokens::{FILES_MAX, Tokens};
use strake_env::sync::Mutex;
use strake_env::{Clock, RealClock};
use strake_manager::{Manager, StripCheck, TokenService, after_crash};
use strake_meta::MetaStore;
use strake_net::{Door, TokenPort};
use strake_observe::Observe;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply};
use strake_proto::{
    ByteCount, ClientId, Error, ErrorKind, FsId, GrantNumber, Ino, Result, SlotIndex,
};
use strake_token::authority::Times;
use strake_token::message::{Request, Term};
use strake_token::port::ToClient;
use tracing::info;

/// The manager's own client.
const CREW: ClientId = ClientId(1);
/// Its page pool. It reads and writes only what repair needs.
const PAGE_POOL: ByteCount = ByteCount(64 << 20);
/// A client keeps what it was granted at least that long, so that it gets some work done.
const HOLD_MIN: Duration = Duration::from_millis(1);
/// A revoke that is not answered is sent again after that long.
const REPEAT: Duration = Duration::from_millis(500);

/// See the head of this file.
pub(crate) struct Crew {
    service: Arc<TokenService>,
    observe: Arc<Observe>,
    clock: Arc<dyn Clock>,
    /// Held while mounts are buried.
    working: Mutex<Option<Arc<Working>>>,
}

/// The manager, once the NSDs are there.
struct Working {
    /// Declared before the client, which it uses, so that its threads end first.
    manager: Manager,
    vfs: Arc<StrakeVfs>,
}

/// Lets clients of the door talk to the service.
struct Behind(Arc<TokenService>);

impl TokenPort for Behind {
    fn attach(&self, client: ClientId, way: Arc<dyn ToClient>) -> Result<Term> {
        self.0.attach(client, way)
    }

    fn receive(&self, client: ClientId, term: Term, message: Request) {
        self.0.receive(client, term, message);
    }
}

impl Crew {
    /// Serves metadata and tokens behind `door`. `mounts` are clients of before, which may live.
    ///
    /// # Errors
    /// The metadata's; when there are no more threads.
    pub(crate) fn start(
        fs: FsId,
        meta: &Arc<MetaStore>,
        mounts: &[ClientId],
        door: &Door,
        observe: &Arc<Observe>,
    ) -> Result<Crew> {
        let clock = RealClock::shared();
        let before: Vec<ClientId> = mounts.iter().copied().chain([CREW]).collect();
        let times = Times { hold_min: HOLD_MIN, repeat: REPEAT };
        let meta = Arc::clone(meta) as Arc<dyn MetaPort>;
        let service = TokenService::start(&before, times, meta, Arc::clone(&clock))?;
        let waits = Arc::clone(observe) as _;
        door.serve_tokens(fs, Arc::new(Behind(Arc::clone(&service))), waits)?;
        door.serve_meta(fs, service.metadata())?;
        let observe = Arc::clone(observe);
        Ok(Crew { service, observe, clock, working: Mutex::new(None) })
    }

    /// True once the manager has begun.
    pub(crate) fn is_at_work(&self) -> bool {
        self.working.lock().is_some()
    }

    /// Has the manager at work, and frees what the mounts in `gone` held when what they left is put
    /// right.
    ///
    /// # Errors
    /// `Io` or `Unreachable` if too many NSDs are away; `TimedOut` if a mount of before does not
    /// say what it holds. The caller tries again.
    pub(crate) fn work(&self, nsds: &NsdWays, gone: &BTreeSet<ClientId>) -> Result<()> {
        let mut working = self.working.lock();
        if let Some(working) = &*working {
            return if gone.is_empty() { Ok(()) } else { self.bury(&working.vfs, gone) };
        }
        let MetaReply::Configuration(known) =
            self.service.metadata().query(&MetaQuery::Configuration)?
        else {
            return Err(Error::new(ErrorKind::Internal, "not a configuration"));
        };
        let slots = (0..).map(SlotIndex).zip(&known.pool.slots);
        let array = Array::open(ArrayOptions {
            meta: self.service.metadata(),
            nsds: slots.map(|(at, slot)| (at, nsds.port(slot.nsd, |_, env| env))).collect(),
            clock: Arc::clone(&self.clock),
            observe: Arc::clone(&self.observe),
            client: CREW,
            io_threads: 4,
            beside_others: true,
        })?;
        let (clock, observe) = (Arc::clone(&self.clock), Arc::clone(&self.observe));
        let way = self.service.way_of(CREW);
        let tokens = Tokens::new(self.service.term(), way, clock, observe, FILES_MAX);
        let settings = strake_client::Settings {
            page_pool: PAGE_POOL,
            flushers: 2,
            own_process: false,
            ..strake_client::Settings::default()
        };
        let vfs = StrakeVfs::start_with_tokens(Arc::clone(&array), settings, Arc::clone(&tokens))?;
        let all = gone.iter().copied().chain([CREW]).collect();
        self.bury(&vfs, &all).map_err(|error| error.context("recovery at start"))?;
        self.service.join(CREW, tokens);
        let exclusion = Arc::clone(&vfs) as Arc<dyn Exclusion>;
        let manager = Manager::start_beside(array, exclusion, Arc::clone(&self.service))?;
        *working = Some(Arc::new(Working { manager, vfs }));
        Ok(())
    }

    /// Puts right what dead clients left, and frees what they held.
    fn bury(&self, vfs: &StrakeVfs, gone: &BTreeSet<ClientId>) -> Result<()> {
        self.service.bury(gone, &|number: GrantNumber, of: &dyn Fn(Ino) -> bool| {
            let array = vfs.array();
            array.io.versions().raise(number);
            let report = after_crash::recover_files(array, of)?;
            if report.failed > 0 {
                let detail = format!("{} stripes cannot be rebuilt yet", report.failed);
                return Err(Error::new(ErrorKind::Io, detail));
            }
            let folded = vfs.fold(of)?;
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

    /// A new mount may use the file system.
    pub(crate) fn admit(&self, client: ClientId) {
        self.service.admit(client);
    }

    /// A mount has ended and left nothing to put right.
    pub(crate) fn closed(&self, client: ClientId) {
        self.service.gone(client);
    }

    /// Compares the metadata with the strips, beside all mounts.
    ///
    /// # Errors
    /// `Unreachable` before the first mount; those of the check.
    pub(crate) fn check_strips(&self) -> Result<StripCheck> {
        let working = self.working.lock().clone();
        match working {
            Some(working) => working.manager.check_strips(),
            None => Err(Error::new(ErrorKind::Unreachable, "the file system is not in use")),
        }
    }

    /// Ends the manager and the tokens. The door serves them no more.
    ///
    /// # Errors
    /// If something could not be made durable.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut result = Ok(());
        if let Some(working) = self.working.lock().take() {
            working.manager.stop();
            result = working.vfs.shutdown().map(drop);
        }
        self.service.stop();
        result
    }
}
