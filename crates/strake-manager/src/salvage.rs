//! Salvaging an NSD whose index has lost something.

use strake_array::Array;
use strake_proto::SlotIndex;
use strake_proto::nsd::NsdRequest;
use tracing::error;

/// Has what is left of an NSD's index written anew. Before that the NSD is noted as out of date, so
/// that no reader is misled by what its index lacks. A recovery copies the rest later. Returns
/// false if the NSD cannot be noted, because too many others are away, or if salvaging fails.
pub(crate) fn salvage(array: &Array, slot: SlotIndex) -> bool {
    let nsds = array.io.nsds();
    nsds.missed().distrust(slot);
    let salvaged = nsds.note(slot).and_then(|()| nsds.call_current(slot, &NsdRequest::Salvage));
    if let Err(error) = &salvaged {
        error!(target: "scrub", "NSD {}: its index cannot be mended now: {error}", nsds.nsd(slot));
    }
    salvaged.is_ok()
}
