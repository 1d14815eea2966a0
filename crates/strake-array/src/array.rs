//! [`Array`]: the parts of this crate as one context, which a client and the manager share.

use crate::floors::Floors;
use crate::meta_link::{MetaLink, wrong_reply};
use crate::nsds::{FindNsd, NsdSet, NsdView};
use crate::room::Room;
use crate::round::Rounds;
use crate::stripe_io::{StripeIo, Versions};
use std::sync::Arc;
use strake_env::sync::WatchedMutex;
use strake_env::{Clock, FanOut};
use strake_observe::Observe;
use strake_proto::layout::{NsdAvailability, Slot};
use strake_proto::meta::{Configuration, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::nsd::NsdPort;
use strake_proto::{
    ClientId, Code, Error, ErrorKind, GrantNumber, NsdId, ObjectId, ObjectLayout, Result, SlotIndex,
};

/// The parts and settings that an array is opened with.
pub struct ArrayOptions {
    /// The metadata.
    pub meta: Arc<dyn MetaPort>,
    /// A way to the NSD of each slot, where there is one.
    pub nsds: Vec<(SlotIndex, Option<Arc<dyn NsdPort>>)>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where waits and operations are recorded.
    pub observe: Arc<Observe>,
    /// The name under which the metadata knows this life.
    pub client: ClientId,
    /// The number of threads that send the strips of a stripe side by side.
    pub io_threads: usize,
    /// Whether other clients use the file system as well. Versions then come from the grants of
    /// tokens ([`crate::stripe_io::Versions::raise`]), not from the one of this life, and space is
    /// what the NSDs grant ([`crate::room`]).
    pub beside_others: bool,
    /// Where NSDs are found that get a slot later, by the word of another client. `None` for a
    /// client that is alone.
    pub find: Option<FindNsd>,
}

strake_env::lock_names! {
    /// Held across metadata and NSD I/O of the reaper.
    pub(crate) Reaping = "deletions of ranges";
}

/// See the file's head.
pub struct Array {
    /// The metadata.
    pub meta: MetaLink,
    /// Blocks to strips and back.
    pub io: Arc<StripeIo>,
    /// From accepted to stable.
    pub rounds: Rounds,
    /// Deletions that not every NSD has applied.
    pub floors: Floors,
    /// Room on the NSDs.
    pub room: Room,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where waits and operations are recorded.
    pub observe: Arc<Observe>,
    /// Bytes of a whole block.
    pub block_size: u32,
    code: Code,
    /// One reaper of deletions at a time.
    pub(crate) reaping: WatchedMutex<Reaping>,
}

impl Array {
    /// Joins the metadata and looks for the NSDs.
    ///
    /// # Errors
    /// Of the metadata; `NoMemory` when there are no more threads.
    pub fn open(options: ArrayOptions) -> Result<Arc<Array>> {
        let ArrayOptions { meta, nsds, clock, observe, client, io_threads, beside_others, find } =
            options;
        let configuration = configuration(meta.as_ref())?;
        let link =
            MetaLink::new(Arc::clone(&meta), client, Arc::clone(&clock), Arc::clone(&observe));
        let MetaReply::Session { grant } = link.apply(MetaOp::Join)? else {
            return Err(wrong_reply());
        };
        // Durable before the first version is made of it: no two lives may share a grant.
        link.sync()?;
        let is_returning = |slot: &&Slot| slot.state.availability == NsdAvailability::Recovering;
        let slots = configuration.pool.slots.iter();
        let returning: Vec<NsdId> = slots.filter(is_returning).map(|slot| slot.nsd).collect();
        let strips = FanOut::new("strips", io_threads).map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("no more threads: {error}"))
        })?;
        let mut set = NsdSet::new(
            configuration.pool,
            configuration.code,
            nsds,
            meta,
            client,
            Arc::clone(&clock),
        );
        set.set_observe(&observe);
        set.find_by(find);
        if beside_others {
            set.use_grants(grant.0);
            for nsd in returning {
                // Others write to it already. If it is not reached here, that is noted below.
                let leaves = set.leaves();
                let _ = set.write_again(nsd, leaves) && set.note_again(nsd, leaves);
            }
        }
        set.note_missing()?;
        let versions = Versions::new(if beside_others { GrantNumber(0) } else { grant });
        let io = Arc::new(StripeIo::new(Arc::new(set), strips, versions));
        let block_size = configuration.block_size;
        Ok(Arc::new(Array {
            meta: link,
            rounds: Rounds::new(Arc::clone(&io), Arc::clone(&observe)),
            floors: Floors::default(),
            room: Room::new(configuration.code, block_size, &io),
            io,
            clock,
            observe,
            block_size,
            code: configuration.code,
            reaping: WatchedMutex::default(),
        }))
    }

    /// The layout of a new object, by the newest layout of the pool map that is known here. `None`
    /// if that has none yet.
    pub fn layout_of_new(&self, object: ObjectId) -> Option<ObjectLayout> {
        let (code, block_size) = (self.code, self.block_size);
        let layout = self.io.nsds().newest_layout()?;
        Some(ObjectLayout { object, code, block_size, layout, key: 0 })
    }

    /// Puts a way to an NSD in place, or takes it away (`None`). An NSD that returns is brought up
    /// to date in the background.
    pub fn attach_nsd(&self, slot: SlotIndex, port: Option<Arc<dyn NsdPort>>) {
        self.io.nsds().attach(slot, port);
    }

    /// Like [`Array::attach_nsd`], for the slot of `nsd`. Does nothing if the NSD has no slot.
    pub fn attach(&self, nsd: NsdId, port: Option<Arc<dyn NsdPort>>) {
        if let Some(slot) = self.io.nsds().slot_of(nsd) {
            self.attach_nsd(slot, port);
        }
    }

    /// The NSDs as they are seen here.
    pub fn nsds(&self) -> Vec<NsdView> {
        self.io.nsds().views()
    }

    /// The largest id that an NSD of the pool has or had. Deleted NSDs count.
    pub fn largest_nsd(&self) -> NsdId {
        self.io.nsds().largest_nsd()
    }
}

fn configuration(meta: &dyn MetaPort) -> Result<Configuration> {
    match meta.query(&MetaQuery::Configuration)? {
        MetaReply::Configuration(configuration) => Ok(*configuration),
        _ => Err(wrong_reply()),
    }
}
