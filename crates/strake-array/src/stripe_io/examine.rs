//! Reading all strips of a block to see whether they are as they should be.

use super::{StripFault, StripeIo};
use strake_env::sync::Mutex;
use strake_proto::nsd::StripHeader;
use strake_proto::{BlockIndex, Geometry, ObjectLayout, Result, StripIndex, Version};
use strake_stripe::StripeSlots;

/// What the strips of a block are like.
pub struct Health {
    pub slots: StripeSlots,
    /// Strips read.
    pub strips: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Positions that are bad, missing, or of another version than the newest.
    pub wrong: Vec<StripIndex>,
}

impl Health {
    /// Whether nothing is wrong with those that can be read.
    pub fn is_whole(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl StripeIo {
    /// Reads and verifies every strip of a block that can be read. Strips below `floor` are no
    /// longer part of it.
    pub fn examine(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        floor: Version,
    ) -> Result<Health> {
        let survey = self.survey(layout, block, floor)?;
        let mut health = Health { slots: survey.slots, strips: 0, bytes: 0, wrong: Vec::new() };
        let headers = survey.sights.iter().filter_map(|sight| sight.as_ref().ok());
        let Some(newest) = headers.max_by_key(|header| header.version).cloned() else {
            return Ok(health);
        };
        let block_bytes = u64::from(newest.block_bytes);
        let strip_bytes = Geometry::of(layout.code, block_bytes).strip_bytes;
        let stored = |at: u8| Geometry::is_stored(layout.code, block_bytes, at);
        let positions: Vec<u8> = (0..survey.sights.len() as u8).filter(|at| stored(*at)).collect();
        let results: Vec<Mutex<bool>> = positions.iter().map(|_| Mutex::new(true)).collect();
        self.fan.run(positions.len(), &|index| {
            let at = positions[index];
            let sight = &survey.sights[usize::from(at)];
            *results[index].lock() = self.is_right(layout, block, at, &newest, sight, strip_bytes);
        });
        for (at, right) in positions.iter().zip(results) {
            if !right.into_inner() {
                health.wrong.push(StripIndex(*at));
            }
        }
        health.strips = positions.len() as u64;
        health.bytes = health.strips * strip_bytes as u64;
        Ok(health)
    }

    /// Whether one strip is there, of that version and whole; one that cannot be read counts as
    /// right.
    fn is_right(
        &self,
        layout: &ObjectLayout,
        block: BlockIndex,
        at: u8,
        newest: &StripHeader,
        sight: &std::result::Result<StripHeader, StripFault>,
        strip_bytes: usize,
    ) -> bool {
        match sight {
            Err(StripFault::Unreadable) => return true,
            Err(StripFault::Absent | StripFault::Bad) => return false,
            Ok(header) if header.version != newest.version => return false,
            Ok(header) if header.block_bytes != newest.block_bytes => return false,
            Ok(_) => {}
        }
        let Ok(slots) = self.nsds.stripe(layout, block) else { return true };
        let mut bytes = self.scratch.take(strip_bytes);
        let key = self.key(layout, block, StripIndex(at));
        let read = self.read_strip(
            slots[usize::from(at)],
            key,
            Some(newest.version),
            0,
            &mut bytes[..strip_bytes],
        );
        !matches!(read, Err(StripFault::Absent | StripFault::Bad))
    }
}
