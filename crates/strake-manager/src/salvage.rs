//! Salvaging an NSD whose index has lost something.

use strake_array::Array;
use strake_proto::SlotIndex;
use strake_proto::nsd::NsdRequest;
use tracing::error;

/// Has what is left of an index written anew, after everybody who could be misled by it was told;
/// the rest is copied by the recovery. False, with nothing done, where the others are too few.
pub(crate) fn salvage(array: &Array, slot: SlotIndex) -> bool {
    let nsds = array.io.nsds();
    nsds.missed().distrust(slot);
    let salvaged = nsds.note(slot).and_then(|()| nsds.call_current(slot, &NsdRequest::Salvage));
    if let Err(error) = &salvaged {
        error!(target: "scrub", "NSD {}: its index cannot be mended now: {error}", nsds.nsd(slot));
    }
    salvaged.is_ok()
}
