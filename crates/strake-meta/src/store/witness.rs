//! A witness of the newest generation that is no NSD: two blocks in a file beside the daemon's own
//! files. It lets a file system start with fewer than p + 1 readable superblocks, which a small one
//! (2x on two NSDs, 3x on three) has not after p losses.
//!
//! A generation is written here before it is written to any superblock. So a copy of generation g
//! is the newest for sure if the witness says g; if it says more, a newer one may exist elsewhere.
//!
//! Two slots of 4 KiB, written alternately (generation modulo 2), integers little-endian:
//!
//! ```text
//! 0    8  magic "STRAKEwg"
//! 8    4  CRC32C of bytes 0..48 with this field zero
//! 12   4  format version, 1
//! 16   8  generation
//! 24  16  cluster id
//! 40   8  reserved, zero
//! ```

use strake_env::{AlignedBuffer, Disk};
use strake_proto::{ClusterId, Result};

/// The bytes a witness's file needs.
pub const WITNESS_BYTES: u64 = 2 * SLOT_BYTES;

const SLOT_BYTES: u64 = 4096;
const RECORD_BYTES: usize = 48;
const MAGIC: &[u8; 8] = b"STRAKEwg";
const FORMAT_VERSION: u32 = 1;

/// The newest generation that the witness knows of; `None` if it knows nothing of this cluster.
///
/// # Errors
/// The disk's.
pub(super) fn read(disk: &dyn Disk, cluster: ClusterId) -> Result<Option<u64>> {
    let mut newest = None;
    for slot in 0..2 {
        let mut buffer = AlignedBuffer::zeroed(SLOT_BYTES as usize);
        disk.read_at(slot * SLOT_BYTES, &mut buffer)?;
        let record = buffer.first_chunk().and_then(decode);
        newest = newest.max(record.filter(|(_, of)| *of == cluster).map(|(number, _)| number));
    }
    Ok(newest)
}

/// Writes a generation durably.
///
/// # Errors
/// The disk's; the generation must not come into force then.
pub(super) fn write(disk: &dyn Disk, cluster: ClusterId, generation: u64) -> Result<()> {
    let mut buffer = AlignedBuffer::zeroed(SLOT_BYTES as usize);
    buffer[..RECORD_BYTES].copy_from_slice(&encode(generation, cluster));
    disk.write_at(generation % 2 * SLOT_BYTES, &buffer)?;
    disk.sync()?;
    Ok(())
}

fn encode(generation: u64, cluster: ClusterId) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(MAGIC);
    record[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    record[16..24].copy_from_slice(&generation.to_le_bytes());
    record[24..40].copy_from_slice(&cluster.0);
    let crc = crc32c::crc32c(&record);
    record[8..12].copy_from_slice(&crc.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(u64, ClusterId)> {
    let generation = u64::from_le_bytes(record[16..24].try_into().ok()?);
    let cluster = ClusterId(record[24..40].try_into().ok()?);
    (*record == encode(generation, cluster)).then_some((generation, cluster))
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::disk::sim::SimDisk;

    #[test]
    fn the_newest_whole_slot_of_the_cluster_counts() {
        let disk = SimDisk::new(WITNESS_BYTES);
        let (ours, theirs) = (ClusterId([1; 16]), ClusterId([2; 16]));
        assert_eq!(read(&*disk, ours), Ok(None));
        for generation in 1..4 {
            write(&*disk, ours, generation).expect("writes");
            assert_eq!(read(&*disk, ours), Ok(Some(generation)));
        }
        assert_eq!(read(&*disk, theirs), Ok(None));
        // Generation 3 is in the second slot.
        disk.flip(SLOT_BYTES + 17, 1);
        assert_eq!(read(&*disk, ours), Ok(Some(2)));
    }

    #[test]
    fn the_bytes_of_a_witness_never_change() {
        let hex: String =
            encode(3, ClusterId([7; 16])).iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "535452414b457767c555682b0100000003000000000000000707070707070707\
                      07070707070707070000000000000000";
        assert_eq!(hex, golden);
    }
}
