//! The figures in listings of the file system and its disks: `strake fs show`, `fs df`,
//! `disk list`. The metadata and the NSDs are asked for them, all side by side. A listing waits for
//! all of them together for [`WAIT_MAX`] at most; see [`super::known`].
//!
//! Everything else in these listings is in memory, so each of them is answered within a second.

use super::known::{Known, Question, Told};
use super::serve::configuration;
use crate::show::Late;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_env::sync::Mutex;
use strake_observe::Waiters;
use strake_proto::meta::{Configuration, MetaPort};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, NsdStatusReply};
use strake_proto::{Error, ErrorKind, NsdId, Result, StatFs};

/// A listing waits so long for what it asks. The commands are to answer within a second.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// A question that only the daemon's parts can answer.
type Ask<T> = Arc<dyn Fn() -> Result<T> + Send + Sync>;

/// Who has the figures.
pub(super) struct Sources {
    pub(super) meta: Arc<dyn MetaPort>,
    /// Tells the space and the count of inodes.
    pub(super) space: Ask<StatFs>,
    /// Tells which NSDs hold the metadata.
    pub(super) holders: Ask<Vec<NsdId>>,
    /// Who asks the NSDs.
    pub(super) context: NsdContext,
}

/// See the head of this file.
pub(super) struct Figures {
    clock: Arc<dyn Clock>,
    waiters: Arc<Waiters>,
    wait_max: Duration,
    configuration: Arc<Known<Arc<Configuration>>>,
    space: Arc<Known<StatFs>>,
    holders: Arc<Known<Vec<NsdId>>>,
    nsds: Mutex<BTreeMap<NsdId, Arc<Known<NsdStatusReply>>>>,
}

/// What a listing has asked for.
pub(super) struct Questions {
    configuration: Question<Arc<Configuration>>,
    space: Question<StatFs>,
    holders: Question<Vec<NsdId>>,
}

/// One NSD that a listing shows.
pub(super) struct Listed {
    pub(super) nsd: NsdId,
    pub(super) name: String,
    /// `None` if it is certainly not there.
    pub(super) port: Option<Arc<dyn NsdPort>>,
    /// False if the listing shows anyway that it is out of use.
    pub(super) should_answer: bool,
}

/// What a listing shows. A figure is missing if it did not come in time and was never told.
pub(super) struct Seen {
    pub(super) configuration: Arc<Configuration>,
    pub(super) space: Option<StatFs>,
    pub(super) holders: Option<Vec<NsdId>>,
    pub(super) nsds: BTreeMap<NsdId, NsdStatusReply>,
    /// What did not come in time.
    pub(super) late: Vec<Late>,
}

impl Figures {
    /// Only the configuration is known yet.
    pub(super) fn new(
        configuration: Configuration,
        clock: &Arc<dyn Clock>,
        waiters: &Arc<Waiters>,
    ) -> Figures {
        Figures {
            clock: Arc::clone(clock),
            waiters: Arc::clone(waiters),
            wait_max: WAIT_MAX,
            configuration: Known::new(Some(Arc::new(configuration)), clock, waiters),
            space: Known::new(None, clock, waiters),
            holders: Known::new(None, clock, waiters),
            nsds: Mutex::default(),
        }
    }

    /// Begins to ask. A start does so, so that there are answers when something is held up later.
    pub(super) fn begin(&self, sources: &Sources) -> Questions {
        let Sources { meta, space, holders, .. } = sources;
        let (meta, space, holders) = (Arc::clone(meta), Arc::clone(space), Arc::clone(holders));
        Questions {
            configuration: self.configuration.ask(move || configuration(&*meta).map(Arc::from)),
            space: self.space.ask(move || space()),
            holders: self.holders.ask(move || holders()),
        }
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// What the metadata answers.
    pub(super) fn look(&self, sources: &Sources, listed: &[Listed]) -> Result<Seen> {
        let end = self.clock.monotonic().saturating_add(self.wait_max);
        let asked = self.begin(sources);
        let nsds: Vec<_> = listed.iter().map(|it| (it, self.ask_nsd(sources, it))).collect();
        let mut late = Vec::new();
        let what = "the configuration";
        let configuration = value(asked.configuration.wait(end, what)?, what, &mut late)
            .expect("invariant: it was known at the start");
        let what = "the space and the inodes";
        let space = value(asked.space.wait(end, what)?, what, &mut late);
        let what = "the holders of the metadata";
        // A leader that fails does not say who holds it.
        let holders = asked.holders.wait(end, what).unwrap_or(Told::Never);
        let holders = value(holders, what, &mut late);
        let mut statuses = BTreeMap::new();
        for (it, question) in nsds {
            let what = format!("the space of {}", it.name);
            // An NSD that answers with an error shows no space.
            let Some(Ok(told)) = question.map(|question| question.wait(end, &what)) else {
                continue;
            };
            let status = match told {
                Told::Now(status) => Some(status),
                late_one if it.should_answer => value(late_one, &what, &mut late),
                _ => None,
            };
            statuses.extend(status.map(|status| (it.nsd, status)));
        }
        Ok(Seen { configuration, space, holders, nsds: statuses, late })
    }

    fn ask_nsd(&self, sources: &Sources, listed: &Listed) -> Option<Question<NsdStatusReply>> {
        let port = Arc::clone(listed.port.as_ref()?);
        let mut nsds = self.nsds.lock();
        let new = || Known::new(None, &self.clock, &self.waiters);
        let known = nsds.entry(listed.nsd).or_insert_with(new);
        let context = sources.context;
        Some(known.ask(move || nsd_status(&*port, context)))
    }
}

/// The value that was told. Notes what was not told in time.
fn value<T>(told: Told<T>, what: &str, late: &mut Vec<Late>) -> Option<T> {
    let (value, age) = match told {
        Told::Now(value) => return Some(value),
        Told::Before(value, age) => (Some(value), Some(age.as_secs())),
        Told::Never => (None, None),
    };
    late.push(Late { what: what.to_owned(), as_of_seconds: age });
    value
}

/// Asks an NSD how it is.
///
/// # Errors
/// The NSD's.
pub(super) fn nsd_status(port: &dyn NsdPort, context: NsdContext) -> Result<NsdStatusReply> {
    match port.call(context, &NsdRequest::Status, &[], &mut [])? {
        NsdReply::Status(status) => Ok(status),
        other => Err(Error::new(ErrorKind::Internal, format!("not a status: {other:?}"))),
    }
}

#[cfg(test)]
#[path = "figures_test.rs"]
mod figures_test;
