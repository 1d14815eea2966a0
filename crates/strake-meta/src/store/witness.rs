//! A witness of the newest generation that is no NSD: two blocks in a file beside the daemon's own
//! files. It lets a file system start with fewer than p + 1 readable superblocks. A small file
//! system (2x on two NSDs, 3x on three) has no more of them after p losses.
//!
//! A generation is written here, with its planned holders, before it is written to any superblock.
//! So if the witness says g, a copy of generation g is certainly the newest. After a crash the
//! witness may say more, for example w, although no superblock has w. A holder of w that is there
//! with an older superblock proves that w never came into force: a generation comes into force only
//! once all its holders have it, and only then is anything acknowledged under it. If no such holder
//! is there, a newer copy may exist elsewhere.
//!
//! Several starts may be cut short one after the other. They leave the witness further ahead, and
//! the generations they leave on superblocks need not have been in force. So the witness also says
//! which generation was in force when w was begun, as far as could be known. Any copy that is at
//! least as new as that one has everything acknowledged.
//!
//! Two slots of 4 KiB, written alternately (generation modulo 2), integers little-endian:
//!
//! ```text
//! 0    8  magic "STRAKEwg"
//! 8    4  CRC32C of bytes 0..120 with this field zero
//! 12   4  format version, 3
//! 16   8  generation
//! 24  16  cluster id
//! 40   8  number of holders, at most 16
//! 48  64  their NSD ids, 4 bytes each; zeros follow
//! 112  8  the newest generation that may have been in force when this one was begun
//! ```
//!
//! Version 1 had no holders. Its checksum covers bytes 0..48, and bytes 40..48 are zero. It is read
//! as a witness that does not name the holders. Version 2 ended after the holders. Its checksum
//! covers bytes 0..112, and the generation before its own is taken as the one in force.

use strake_env::{AlignedBuffer, Disk};
use strake_proto::{ClusterId, NsdId, Result};
use strake_store::superblock::METADATA_HOLDERS_MAX;

/// The length of a witness's file in bytes.
pub const WITNESS_BYTES: u64 = 2 * SLOT_BYTES;

const SLOT_BYTES: u64 = 4096;
const FIXED_BYTES: usize = 48;
/// A record of version 2 ends here. Version 3 goes on.
const HOLDERS_END: usize = FIXED_BYTES + 4 * METADATA_HOLDERS_MAX;
const RECORD_BYTES: usize = HOLDERS_END + 8;
const MAGIC: &[u8; 8] = b"STRAKEwg";

/// The contents of a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Testimony {
    /// The newest generation that was begun.
    pub(super) generation: u64,
    /// The NSDs that were to hold this generation. Empty if the witness does not name them.
    pub(super) holders: Vec<NsdId>,
    /// The newest generation that may have been in force when this one was begun.
    pub(super) in_force: u64,
}

/// Reads the contents of the witness for this cluster, if it has any.
///
/// # Errors
/// The disk's own errors.
pub(super) fn read(disk: &dyn Disk, cluster: ClusterId) -> Result<Option<Testimony>> {
    let mut newest: Option<Testimony> = None;
    for slot in 0..2 {
        let mut buffer = AlignedBuffer::zeroed(SLOT_BYTES as usize);
        disk.read_at(slot * SLOT_BYTES, &mut buffer)?;
        let found = buffer.first_chunk().and_then(decode).filter(|(of, _)| *of == cluster);
        let Some((_, found)) = found else { continue };
        if newest.as_ref().is_none_or(|newest| newest.generation < found.generation) {
            newest = Some(found);
        }
    }
    Ok(newest)
}

/// Writes a generation durably.
///
/// # Errors
/// The disk's own errors. After one, the generation must not come into force.
pub(super) fn write(disk: &dyn Disk, cluster: ClusterId, testimony: &Testimony) -> Result<()> {
    let mut buffer = AlignedBuffer::zeroed(SLOT_BYTES as usize);
    buffer[..RECORD_BYTES].copy_from_slice(&encode(testimony, cluster));
    disk.write_at(testimony.generation % 2 * SLOT_BYTES, &buffer)?;
    disk.sync()?;
    Ok(())
}

fn encode(testimony: &Testimony, cluster: ClusterId) -> [u8; RECORD_BYTES] {
    assert!(testimony.holders.len() <= METADATA_HOLDERS_MAX, "holders must fit");
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(MAGIC);
    record[12..16].copy_from_slice(&3u32.to_le_bytes());
    record[16..24].copy_from_slice(&testimony.generation.to_le_bytes());
    record[24..40].copy_from_slice(&cluster.0);
    record[40..48].copy_from_slice(&(testimony.holders.len() as u64).to_le_bytes());
    for (index, holder) in testimony.holders.iter().enumerate() {
        let at = FIXED_BYTES + 4 * index;
        record[at..at + 4].copy_from_slice(&holder.0.to_le_bytes());
    }
    record[HOLDERS_END..].copy_from_slice(&testimony.in_force.to_le_bytes());
    let crc = crc32c::crc32c(&record);
    record[8..12].copy_from_slice(&crc.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(ClusterId, Testimony)> {
    let version = u32::from_le_bytes(record[12..16].try_into().ok()?);
    let covered = match version {
        1 => &record[..FIXED_BYTES],
        2 => &record[..HOLDERS_END],
        _ => &record[..],
    };
    let mut plain = covered.to_vec();
    plain[8..12].fill(0);
    let crc = u32::from_le_bytes(record[8..12].try_into().ok()?);
    if &record[..8] != MAGIC || version == 0 || version > 3 || crc != crc32c::crc32c(&plain) {
        return None;
    }
    let generation = u64::from_le_bytes(record[16..24].try_into().ok()?);
    let cluster = ClusterId(record[24..40].try_into().ok()?);
    let count = usize::try_from(u64::from_le_bytes(record[40..48].try_into().ok()?)).ok()?;
    let ids = &covered[FIXED_BYTES..covered.len().min(HOLDERS_END)];
    let ids = ids.chunks_exact(4).take(count);
    let holders: Vec<NsdId> = ids
        .map(|id| id.try_into().map(|id| NsdId(u32::from_le_bytes(id))))
        .collect::<std::result::Result<_, _>>()
        .ok()?;
    let in_force = match covered.get(HOLDERS_END..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => generation.saturating_sub(1),
    };
    (holders.len() == count).then_some((cluster, Testimony { generation, holders, in_force }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::Rng;
    use strake_env::disk::sim::SimDisk;
    use strake_env::rng::{test_scale, test_seeds};

    fn testimony(generation: u64) -> Testimony {
        Testimony { generation, holders: vec![NsdId(4), NsdId(300)], in_force: generation - 1 }
    }

    #[test]
    fn the_newest_whole_slot_of_the_cluster_counts() {
        let disk = SimDisk::new(WITNESS_BYTES);
        let (ours, theirs) = (ClusterId([1; 16]), ClusterId([2; 16]));
        assert_eq!(read(&*disk, ours), Ok(None));
        for generation in 1..4 {
            write(&*disk, ours, &testimony(generation)).expect("writes");
            assert_eq!(read(&*disk, ours), Ok(Some(testimony(generation))));
        }
        assert_eq!(read(&*disk, theirs), Ok(None));
        // Generation 3 is in the second slot.
        disk.flip(SLOT_BYTES + 17, 1);
        assert_eq!(read(&*disk, ours), Ok(Some(testimony(2))));
    }

    #[test]
    fn the_bytes_of_a_witness_never_change() {
        let hex: String = encode(&testimony(3), ClusterId([7; 16]))
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let golden = "535452414b457767f26d5db8030000000300000000000000\
                      070707070707070707070707070707070200000000000000\
                      040000002c010000"
            .to_owned()
            + &"0".repeat(2 * 56)
            + "0200000000000000";
        assert_eq!(hex, golden);
    }

    #[test]
    fn mutated_witnesses_are_read_or_not_but_never_panic() {
        let ours = ClusterId([7; 16]);
        let (mut known, mut refused) = (0, 0);
        for seed in test_seeds(0, 2_000 * test_scale()) {
            let mut rng = Rng::new(seed);
            let disk = SimDisk::new(WITNESS_BYTES);
            for generation in 1..4 {
                write(&*disk, ours, &testimony(generation)).expect("writes");
            }
            for slot in 0..2 {
                let mut bytes = AlignedBuffer::zeroed(SLOT_BYTES as usize);
                disk.read_at(slot * SLOT_BYTES, &mut bytes).expect("reads");
                for _ in 0..rng.below(4) {
                    bytes[rng.index(RECORD_BYTES)] =
                        [0, 1, 2, 255, rng.next_u64() as u8][rng.index(5)];
                }
                if !rng.one_in(4) {
                    let covered = match bytes[12] {
                        1 => FIXED_BYTES,
                        2 => HOLDERS_END,
                        _ => RECORD_BYTES,
                    };
                    bytes[8..12].fill(0);
                    let crc = crc32c::crc32c(&bytes[..covered]);
                    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
                }
                disk.write_at(slot * SLOT_BYTES, &bytes).expect("writes");
            }
            match read(&*disk, ours).expect("the disk reads") {
                Some(found) => {
                    assert!(found.holders.len() <= METADATA_HOLDERS_MAX, "seed {seed}");
                    known += 1;
                }
                None => refused += 1,
            }
        }
        assert!(known > 0 && refused > 0, "{known} known, {refused} refused");
    }

    #[test]
    fn a_witness_of_version_2_is_read() {
        let mut record = encode(&testimony(3), ClusterId([7; 16]));
        record[8..16].copy_from_slice(&[0x96, 0x51, 0x82, 0xe1, 2, 0, 0, 0]);
        // Version 2 did not write what follows.
        record[HOLDERS_END..].fill(0xff);
        assert_eq!(decode(&record), Some((ClusterId([7; 16]), testimony(3))));
        record[50] ^= 1;
        assert_eq!(decode(&record), None);
    }

    #[test]
    fn a_witness_of_version_1_is_read() {
        let golden = "535452414b457767c555682b0100000003000000000000000707070707070707\
                      07070707070707070000000000000000";
        let mut record = [0; RECORD_BYTES];
        for (at, byte) in record.iter_mut().take(FIXED_BYTES).enumerate() {
            *byte = u8::from_str_radix(&golden[2 * at..2 * at + 2], 16).expect("hex");
        }
        let known = Testimony { generation: 3, holders: Vec::new(), in_force: 2 };
        assert_eq!(decode(&record), Some((ClusterId([7; 16]), known)));
        record[16] ^= 1;
        assert_eq!(decode(&record), None);
    }
}
