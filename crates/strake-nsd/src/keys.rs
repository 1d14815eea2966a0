//! Keys of the index. They are big-endian, so they sort in scan order. The first byte names the
//! table.
//!
//! ```text
//! 'B'                                                  the boot counter
//! 'G' client(8) epoch(8)                               what is granted to a client
//! 'P' fs(4) object(8) block(8) strip(1)                a promise to refuse versions
//! 'S' fs(4) object(8) block(8) strip(1)                a strip
//! 'T' fs(4) object(8) end(8)                           a tombstone, by one past its last block
//! ```
//!
//! Tombstones of one object never overlap, because they are kept as a step function of the block.
//! So only the first key with an end above a block can cover that block.

use crate::grants::Holder;
use strake_proto::{BlockIndex, ClientId, Epoch, FsId, ObjectId, StripIndex, StripKey};

/// The key of the boot counter.
pub const BOOT_KEY: &[u8] = b"B";
/// Bytes of the key of a strip or promise.
pub const STRIP_KEY_BYTES: usize = 22;
/// Bytes of the key of a tombstone.
pub const TOMBSTONE_KEY_BYTES: usize = 21;

/// Bytes of the key of a grant.
pub const GRANT_KEY_BYTES: usize = 17;

/// Tables keyed by strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Promises to refuse versions.
    Promise = b'P' as isize,
    /// Strips.
    Strip = b'S' as isize,
}

/// The key of strip `key` in `table`.
pub fn strip_key(table: Table, key: &StripKey) -> [u8; STRIP_KEY_BYTES] {
    let mut bytes = [0; STRIP_KEY_BYTES];
    bytes[0] = table as u8;
    bytes[1..5].copy_from_slice(&key.fs.0.to_be_bytes());
    bytes[5..13].copy_from_slice(&key.object.0.to_be_bytes());
    bytes[13..21].copy_from_slice(&key.block.0.to_be_bytes());
    bytes[21] = key.strip.0;
    bytes
}

/// The first key of a block in `table`. A scan over the block begins here, and a scan of the blocks
/// before it ends here.
pub fn block_start(table: Table, fs: FsId, object: ObjectId, block: BlockIndex) -> Vec<u8> {
    strip_key(table, &StripKey { fs, object, block, strip: StripIndex(0) }).to_vec()
}

/// One past the last key of blocks `..to` in `table`. For `END`, one past the last key of the
/// object.
pub fn range_end(table: Table, fs: FsId, object: ObjectId, to: BlockIndex) -> Vec<u8> {
    if to != BlockIndex::END {
        return block_start(table, fs, object, to);
    }
    let last = StripKey { fs, object, block: to, strip: StripIndex(u8::MAX) };
    let mut bytes = strip_key(table, &last).to_vec();
    bytes.push(0);
    bytes
}

/// One past the last key of `table`.
pub fn table_end(table: Table) -> Vec<u8> {
    vec![table as u8 + 1]
}

/// Reads a key of `table` back. `None` if the bytes are no such key.
pub fn parse_strip_key(table: Table, bytes: &[u8]) -> Option<StripKey> {
    let bytes: &[u8; STRIP_KEY_BYTES] = bytes.try_into().ok()?;
    (bytes[0] == table as u8).then(|| StripKey {
        fs: FsId(u32::from_be_bytes(array(&bytes[1..5]))),
        object: ObjectId(u64::from_be_bytes(array(&bytes[5..13]))),
        block: BlockIndex(u64::from_be_bytes(array(&bytes[13..21]))),
        strip: StripIndex(bytes[21]),
    })
}

/// The key of the tombstone of `object` that ends before block `end`.
pub fn tombstone_key(fs: FsId, object: ObjectId, end: BlockIndex) -> [u8; TOMBSTONE_KEY_BYTES] {
    let mut bytes = [0; TOMBSTONE_KEY_BYTES];
    bytes[0] = b'T';
    bytes[1..5].copy_from_slice(&fs.0.to_be_bytes());
    bytes[5..13].copy_from_slice(&object.0.to_be_bytes());
    bytes[13..21].copy_from_slice(&end.0.to_be_bytes());
    bytes
}

/// The key of what is granted to a client.
pub fn grant_key((client, epoch): Holder) -> [u8; GRANT_KEY_BYTES] {
    let mut bytes = [0; GRANT_KEY_BYTES];
    bytes[0] = b'G';
    bytes[1..9].copy_from_slice(&client.0.to_be_bytes());
    bytes[9..17].copy_from_slice(&epoch.0.to_be_bytes());
    bytes
}

/// The range of the keys of all grants: the first bound is inside, the second is not.
pub fn grant_table() -> (Vec<u8>, Vec<u8>) {
    (vec![b'G'], vec![b'G' + 1])
}

/// Reads the key of a grant back. `None` if the bytes are no such key.
pub fn parse_grant_key(bytes: &[u8]) -> Option<Holder> {
    let bytes: &[u8; GRANT_KEY_BYTES] = bytes.try_into().ok()?;
    let number = |at: usize| u64::from_be_bytes(array(&bytes[at..at + 8]));
    (bytes[0] == b'G').then(|| (ClientId(number(1)), Epoch(number(9))))
}

/// The range of the keys of all tombstones: the first bound is inside, the second is not.
pub fn tombstone_table() -> (Vec<u8>, Vec<u8>) {
    (vec![b'T'], vec![b'T' + 1])
}

/// One past the last tombstone of `object`.
pub fn tombstone_end(fs: FsId, object: ObjectId) -> Vec<u8> {
    let mut bytes = tombstone_key(fs, object, BlockIndex::END).to_vec();
    bytes.push(0);
    bytes
}

/// Reads a tombstone's key back, with the tombstone's end. `None` if the bytes are no such key.
pub fn parse_tombstone_key(bytes: &[u8]) -> Option<(FsId, ObjectId, BlockIndex)> {
    let bytes: &[u8; TOMBSTONE_KEY_BYTES] = bytes.try_into().ok()?;
    (bytes[0] == b'T').then(|| {
        (
            FsId(u32::from_be_bytes(array(&bytes[1..5]))),
            ObjectId(u64::from_be_bytes(array(&bytes[5..13]))),
            BlockIndex(u64::from_be_bytes(array(&bytes[13..21]))),
        )
    })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("invariant: the caller cut the slice to length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_strips_do_and_read_back() {
        let mut keys = Vec::new();
        for fs in [1, 256] {
            for object in [0, 255, u64::MAX] {
                for block in [0, 256, u64::MAX] {
                    for strip in [0, 255] {
                        keys.push(StripKey {
                            fs: FsId(fs),
                            object: ObjectId(object),
                            block: BlockIndex(block),
                            strip: StripIndex(strip),
                        });
                    }
                }
            }
        }
        let encoded: Vec<_> = keys.iter().map(|key| strip_key(Table::Strip, key)).collect();
        assert!(encoded.is_sorted());
        for (key, bytes) in keys.iter().zip(&encoded) {
            assert_eq!(parse_strip_key(Table::Strip, bytes), Some(*key));
            assert_eq!(parse_strip_key(Table::Promise, bytes), None);
            assert!(bytes.as_slice() < table_end(Table::Strip).as_slice());
            let end = range_end(Table::Strip, key.fs, key.object, BlockIndex::END);
            assert!(bytes.as_slice() < end.as_slice());
        }
        let tombstone = tombstone_key(FsId(1), ObjectId(2), BlockIndex(3));
        let read = parse_tombstone_key(&tombstone);
        assert_eq!(read, Some((FsId(1), ObjectId(2), BlockIndex(3))));
        assert_eq!(parse_tombstone_key(&tombstone[1..]), None);
        let holder = (ClientId(5), Epoch(6));
        let grant = grant_key(holder);
        assert_eq!(parse_grant_key(&grant), Some(holder));
        assert_eq!(parse_grant_key(&grant[1..]), None);
        let (from, to) = grant_table();
        assert!(from.as_slice() < grant.as_slice() && grant.as_slice() < to.as_slice());
    }
}
