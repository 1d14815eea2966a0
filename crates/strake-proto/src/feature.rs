//! What programs of several versions have in common (R32, decision 0080).
//!
//! A *feature level* is a number for all that programs of one version understand. A cluster has a
//! level, which is in its logs: every member understands it. It never falls, and rises only when
//! somebody asks for it (`strake cluster upgrade`).
//!
//! A *protocol version* is the same for one connection. Each end says which version it speaks at
//! most, and the lower one counts. So programs of several versions talk to each other while a
//! cluster is upgraded node by node.
//!
//! **Something new** gets a [`Feature`] with the level that brings it, and its place in one of the
//! functions below. Each of them names all messages, so a new one does not compile before it has a
//! place. What goes into a log needs the level of the group that keeps the log, and the leader
//! refuses it below. What goes over a connection needs the connection's version, and the caller is
//! refused with [`ErrorKind::NotSupported`] below; it does without.
//!
//! What exists keeps its encoding for as long as [`OLDEST_PROTOCOL`] is below the version that
//! changes it.

use crate::error::{Error, ErrorKind, Result};
use crate::meta::{MetaOp, MetaQuery};
use crate::nsd::{NsdRequest, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// The oldest protocol version that this program speaks.
pub const OLDEST_PROTOCOL: u16 = 13;

/// The newest protocol version that programs of each level speak, from level 1 on.
const PROTOCOLS: [u16; 2] = [OLDEST_PROTOCOL, PROTOCOL_VERSION];

/// A number for all that programs of one version understand; see the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureLevel(pub u32);

impl FeatureLevel {
    /// The level of the first clusters. Their records and logs name none.
    pub const FIRST: FeatureLevel = FeatureLevel(1);
    /// The newest level that there is.
    pub const NEWEST: FeatureLevel = FeatureLevel(PROTOCOLS.len() as u32);

    /// The newest protocol version of a program that understands this level and no higher one.
    pub fn protocol(self) -> u16 {
        let index = self.0.saturating_sub(1) as usize;
        PROTOCOLS.get(index).copied().unwrap_or(PROTOCOL_VERSION)
    }

    /// The level in a log that names it so: 0 stands for the first one.
    pub fn of_log(level: u32) -> FeatureLevel {
        FeatureLevel(level).max(FeatureLevel::FIRST)
    }

    /// How a log names it.
    pub fn in_log(self) -> u32 {
        if self > FeatureLevel::FIRST { self.0 } else { 0 }
    }

    /// Refuses to take part in something of this level if this program does not understand it.
    /// `what` begins the sentence: whose level it is.
    ///
    /// # Errors
    /// `NotSupported`, with advice.
    pub fn check_understood(self, what: &str) -> Result<()> {
        let own = understood();
        if self <= own {
            return Ok(());
        }
        let detail = format!(
            "{what} has feature level {self}, and this program (strake {}) understands {own}: \
             install the version that the other nodes run",
            env!("CARGO_PKG_VERSION")
        );
        Err(Error::new(ErrorKind::NotSupported, detail))
    }
}

/// Of those who say nothing.
impl Default for FeatureLevel {
    fn default() -> FeatureLevel {
        FeatureLevel::FIRST
    }
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Something that programs of an earlier level do not understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The records of a cluster name its level.
    RecordedLevel,
    /// An answer about an absent name tells the names that follow.
    FollowingNames,
    /// An NSD puts a bad strip right by its own version.
    Mending,
    /// A client makes and removes names without waiting for the metadata, and sends many changes
    /// at once.
    LaterChanges,
    /// A client says many things about tokens at once.
    ManyTokens,
    /// A client has an NSD change many ranges at once.
    ManyRanges,
    /// A client writes many small strips at once.
    ManyStrips,
    /// Several nodes reach an NSD, and one of them serves it.
    SharedDisks,
    /// The records of a cluster name several nodes that issue certificates.
    Issuers,
    /// The metadata of a file system goes on without a majority while the records have theirs.
    GoingOn,
}

impl Feature {
    /// The level that brings it.
    pub fn level(self) -> FeatureLevel {
        match self {
            Feature::RecordedLevel | Feature::FollowingNames => FeatureLevel(2),
            Feature::Mending | Feature::LaterChanges | Feature::ManyTokens => FeatureLevel(2),
            Feature::ManyRanges | Feature::ManyStrips => FeatureLevel(2),
            Feature::SharedDisks | Feature::Issuers | Feature::GoingOn => FeatureLevel(2),
        }
    }

    /// The protocol version that brings it.
    pub fn protocol(self) -> u16 {
        self.level().protocol()
    }

    /// Refuses to begin something in a cluster of this level if that is too low. `what` begins the
    /// sentence.
    ///
    /// # Errors
    /// `NotSupported`, with advice.
    pub fn check_level(self, level: FeatureLevel, what: &str) -> Result<()> {
        let needed = self.level();
        if level >= needed {
            return Ok(());
        }
        let detail = format!(
            "{what}: this needs feature level {needed}, and the cluster has {level}: `strake \
             cluster upgrade` raises it when all nodes run this version"
        );
        Err(Error::new(ErrorKind::NotSupported, detail))
    }
}

/// The level that an entry with this change of the metadata needs.
pub fn level_of(op: &MetaOp) -> FeatureLevel {
    of_change(op).map_or(FeatureLevel::FIRST, Feature::level)
}

/// The feature that a change of the metadata belongs to, if it came after the first level.
pub fn of_change(op: &MetaOp) -> Option<Feature> {
    use MetaOp as It;
    match op {
        It::Create { .. } | It::CreateOrphan { .. } | It::Link { .. } | It::Unlink { .. } => {}
        It::Rmdir { .. } | It::Rename { .. } | It::SetAttr { .. } | It::NewObject { .. } => {}
        It::Update { .. } | It::Truncate { .. } | It::DeleteBlocks { .. } => {}
        It::Harden { .. } | It::Folded { .. } | It::RangeApplied { .. } => {}
        It::SetXattr { .. } | It::RemoveXattr { .. } | It::Reap { .. } | It::Join => {}
        It::SetNsdState { .. } | It::SetConfig { .. } | It::Format(_) => {}
        It::ReplaceNsd { .. } | It::MoveMetadataCopy { .. } | It::DeleteNsd { .. } => {}
        It::DeleteBeyond { .. } | It::ReserveGrants { .. } | It::Leave => {}
        It::FoldedUnits { .. } | It::AddNsd { .. } | It::MoveData { .. } => {}
        It::ReserveInodes { .. } | It::CreateAs { .. } | It::Remove { .. } => {
            return Some(Feature::LaterChanges);
        }
        It::ReserveObjects { .. } | It::NewObjectAs { .. } => return Some(Feature::LaterChanges),
    }
    None
}

/// The feature that a question about the metadata belongs to, if it came after the first level.
pub fn of_query(query: &MetaQuery) -> Option<Feature> {
    use MetaQuery as It;
    match query {
        It::Lookup { .. } | It::GetInode { .. } | It::ReadDir { .. } | It::ReadLink { .. } => None,
        It::GetXattr { .. } | It::ListXattr { .. } | It::Counts | It::PendingRanges { .. } => None,
        It::Hardened { .. } | It::Orphans { .. } | It::ScanInodes { .. } => None,
        It::IsReserved { .. } | It::Configuration | It::Check | It::ScrubCopy { .. } => None,
        It::CheckAs { .. } | It::EndCheck { .. } => None,
        It::LookupOrNext { .. } => Some(Feature::FollowingNames),
    }
}

/// The feature that a request to an NSD belongs to, if it came after the first level.
pub fn of_nsd_request(request: &NsdRequest) -> Option<Feature> {
    use NsdRequest as It;
    match request {
        It::Write { .. } | It::Patch { .. } | It::Read { .. } | It::Commit { .. } => None,
        It::DeleteRange { .. } | It::ForgetTombstones { .. } | It::Refuse { .. } => None,
        It::List { .. } | It::ListUnsettled { .. } | It::Status | It::Check { .. } => None,
        It::Scrub { .. } | It::Salvage | It::Admission | It::Lease { .. } => None,
        It::Allow { .. } | It::Fence { .. } | It::RaiseFloor { .. } => None,
        It::ListLacking { .. } | It::GrantSpace(_) | It::CheckPart { .. } => None,
        It::Mend { .. } => Some(Feature::Mending),
        It::ChangeRanges { .. } => Some(Feature::ManyRanges),
        It::WriteMany { .. } => Some(Feature::ManyStrips),
    }
}

/// Refuses a message that belongs to `feature` if the connection's version is older.
///
/// # Errors
/// `NotSupported`: the caller does without.
pub fn check_spoken(feature: Option<Feature>, protocol: u16) -> Result<()> {
    match feature {
        Some(feature) if feature.protocol() > protocol => {
            let detail = format!("the peer runs an older program, which does not know {feature:?}");
            Err(Error::new(ErrorKind::NotSupported, detail))
        }
        _ => Ok(()),
    }
}

/// The highest level that this process understands.
static UNDERSTOOD: AtomicU32 = AtomicU32::new(FeatureLevel::NEWEST.0);

/// The highest level that this program understands.
pub fn understood() -> FeatureLevel {
    FeatureLevel(UNDERSTOOD.load(Ordering::Relaxed))
}

/// From now on this process behaves as a program that understands no higher level, and speaks no
/// newer protocol. For tests of upgrades, which need an older program. To be called before all
/// else. Levels that do not exist are passed over.
pub fn understand_at_most(level: FeatureLevel) {
    let level = level.clamp(FeatureLevel::FIRST, FeatureLevel::NEWEST);
    UNDERSTOOD.store(level.0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_protocols_rise_together() {
        assert!(PROTOCOLS.is_sorted_by(|before, after| before < after));
        assert_eq!(FeatureLevel::FIRST.protocol(), OLDEST_PROTOCOL);
        assert_eq!(FeatureLevel::NEWEST.protocol(), PROTOCOL_VERSION);
        assert_eq!(FeatureLevel(99).protocol(), PROTOCOL_VERSION);
        assert_eq!(FeatureLevel(0).protocol(), OLDEST_PROTOCOL);
    }

    #[test]
    fn a_log_without_a_level_has_the_first_one() {
        assert_eq!(FeatureLevel::of_log(0), FeatureLevel::FIRST);
        assert_eq!((FeatureLevel::FIRST.in_log(), FeatureLevel(2).in_log()), (0, 2));
        assert_eq!(FeatureLevel::of_log(2), FeatureLevel(2));
    }

    #[test]
    fn a_level_of_the_future_is_refused_with_advice() {
        FeatureLevel::NEWEST.check_understood("cluster demo").expect("known");
        let error = FeatureLevel(99).check_understood("cluster demo").expect_err("unknown");
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        for part in ["cluster demo has feature level 99", "understands 2: install"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn what_the_cluster_has_no_level_for_is_refused_with_advice() {
        Feature::SharedDisks.check_level(FeatureLevel(2), "it").expect("it may begin");
        let refused = Feature::SharedDisks.check_level(FeatureLevel::FIRST, "it");
        let text = refused.expect_err("too low").to_string();
        assert!(
            text.starts_with("it: this needs feature level 2, and the cluster has 1:"),
            "{text}"
        );
    }

    #[test]
    fn a_message_is_refused_on_a_connection_of_an_older_version() {
        let feature = Some(Feature::RecordedLevel);
        let error = check_spoken(feature, 13).expect_err("older");
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        check_spoken(feature, 14).expect("as new");
        check_spoken(None, 13).expect("old enough");
    }
}
