//! Where the strips of a block lie, as the NSDs themselves say. Only headers are read, and nothing
//! is changed.

use super::{StripFault, StripeIo};
use strake_proto::nsd::StripHeader;
use strake_proto::{BlockIndex, Geometry, ObjectLayout, Result, Version};
use strake_stripe::StripeSlots;

/// The state of the strip at one position of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The strip, of the newest version.
    Present,
    /// Nothing, and nothing should be there.
    Unneeded,
    /// Nothing, although the block has a strip there; or a strip of an older version.
    Missing,
    /// A damaged strip.
    Damaged,
    /// The NSD cannot be read.
    Away,
}

/// Where a block lies.
pub struct Located {
    /// The NSDs of its positions.
    pub slots: StripeSlots,
    /// The newest version that an NSD has, and its length. `None` if none of those that can be read
    /// has any.
    pub newest: Option<(Version, u32)>,
    /// The state of the strip at each position.
    pub sights: Vec<Sight>,
}

impl StripeIo {
    /// Asks every NSD of a block for its strip's header. Strips below `floor` are no longer part of
    /// the block.
    ///
    /// # Errors
    /// If the pool has no such layout.
    pub fn locate(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
    ) -> Result<Located> {
        let survey = self.survey(layout, block, floor)?;
        let headers = survey.sights.iter().filter_map(|sight| sight.as_ref().ok());
        let newest = headers.max_by_key(|header| header.version);
        let newest = newest.map(|header| (header.version, header.block_bytes));
        let is_stored = |at: usize| {
            newest.is_some_and(|(_, bytes)| {
                Geometry::is_stored(layout.code, u64::from(bytes), at as u8)
            })
        };
        let sights = survey.sights.iter().enumerate();
        let sights = sights.map(|(at, sight)| judge(sight, newest, is_stored(at))).collect();
        Ok(Located { slots: survey.slots, newest, sights })
    }
}

fn judge(
    sight: &std::result::Result<StripHeader, StripFault>,
    newest: Option<(Version, u32)>,
    is_stored: bool,
) -> Sight {
    match sight {
        Ok(header) if Some((header.version, header.block_bytes)) == newest => Sight::Present,
        Ok(_) => Sight::Missing,
        Err(StripFault::Absent) if is_stored => Sight::Missing,
        Err(StripFault::Absent) => Sight::Unneeded,
        Err(StripFault::Bad) => Sight::Damaged,
        Err(StripFault::Unreadable) => Sight::Away,
    }
}
