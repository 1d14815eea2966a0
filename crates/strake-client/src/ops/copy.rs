//! Copies between files of this file system.

use crate::data::of::Of;
use crate::data::prefetch::ReadAhead;
use crate::data::write::Position;
use strake_array::stripe_io::Access;
use strake_env::sync::Mutex;
use strake_proto::Result;

/// So many bytes are moved at once.
const STEP_BYTES: usize = 1 << 20;
/// One call copies at most so many bytes. The caller calls again for more.
const CALL_BYTES_MAX: u64 = 64 << 20;

/// Copies up to `length` bytes. Copies fewer at the end of the source, at the limit of one call, or
/// when there is no more space. `access` says whether other mounts are kept from the source.
pub(crate) fn copy_range(
    (source, from): (&Of<'_>, u64),
    (target, to): (&Of<'_>, u64),
    length: u64,
    access: Access,
) -> Result<u64> {
    let ahead = Mutex::new(ReadAhead::default());
    let length = length.min(CALL_BYTES_MAX);
    let mut buffer = source.mount.array.io.scratch().take(STEP_BYTES);
    let mut done = 0;
    while done < length {
        let step = usize::try_from(length - done).unwrap_or(STEP_BYTES).min(STEP_BYTES);
        let count = match source.read(&ahead, from + done, &mut buffer[..step], access) {
            Err(error) if done == 0 => return Err(error),
            Err(_) | Ok(0) => break,
            Ok(count) => count,
        };
        match target.write(Position::At(to + done), &buffer[..count]) {
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
            Ok(written) => {
                done += written as u64;
                if written < count {
                    break;
                }
            }
        }
    }
    Ok(done)
}
