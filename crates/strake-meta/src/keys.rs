//! Keys of the metadata's tables. Only this file encodes integers big-endian, so that keys sort as
//! their numbers do.
//!
//! ```text
//! 0   1  table letter
//! 1   2  shard, 0 today (several consensus groups later)
//! 3   …  I inode number(8)            ▶ inode            (records.rs for all values)
//!        D directory(8) name          ▶ dentry
//!        C directory(8) cookie(8)     ▶ dentry by its place
//!        X inode number(8) name       ▶ extended attribute's value
//!        O inode number(8)            ▶ orphan
//!        H inode number(8) unit(8)   ▶ a hardened unit's bytes
//!        P id(8)                      ▶ pending range deletion
//!        N object(8)                  ▶ object reserved for a file
//!        R client(8)                  ▶ a client's life
//!        R client(8) place(8)         ▶ the answer of a counted change, by its place in the window
//!        G name                       ▶ counters, configuration; the mark of a copy under way
//! ```

use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::Cookie;
use strake_proto::{ClientId, Ino, ObjectId};

/// A table's letter: the first byte of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Table {
    /// Inodes by number.
    Inode = b'I',
    /// Names by directory and name.
    Dentry = b'D',
    /// Names by directory and cookie.
    Cookie = b'C',
    /// Extended attributes by inode and name.
    Xattr = b'X',
    /// Inodes without a name.
    Orphan = b'O',
    /// Hardened units by inode and unit.
    Hardened = b'H',
    /// Range deletions under way.
    Pending = b'P',
    /// Objects that no file names yet.
    Reserved = b'N',
    /// The life of each client, and the answers that it may ask for again.
    Session = b'R',
    /// Single records.
    Global = b'G',
}

/// Offset of the number, which follows the table letter and the shard.
const NUMBER_AT: usize = 3;
const NAME_AT: usize = NUMBER_AT + 8;

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub from: Vec<u8>,
    /// The first key beyond the range.
    pub to: Vec<u8>,
}

fn numbered(table: Table, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(NAME_AT);
    key.extend_from_slice(&[table as u8, 0, 0]);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn named(table: Table, number: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(NAME_AT + name.len());
    key.extend_from_slice(&[table as u8, 0, 0]);
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// An inode's key.
pub fn inode(ino: Ino) -> Vec<u8> {
    numbered(Table::Inode, ino.0)
}

/// A name's key.
pub fn dentry(directory: Ino, name: &[u8]) -> Vec<u8> {
    named(Table::Dentry, directory.0, name)
}

/// A name's key by its place.
pub fn cookie(directory: Ino, cookie: Cookie) -> Vec<u8> {
    named(Table::Cookie, directory.0, &cookie.to_be_bytes())
}

/// An extended attribute's key.
pub fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    named(Table::Xattr, ino.0, name)
}

/// A hardened unit's key.
pub fn hardened(ino: Ino, unit: u64) -> Vec<u8> {
    named(Table::Hardened, ino.0, &unit.to_be_bytes())
}

/// The hardened units of a file in a half-open range of units.
pub fn hardened_range(ino: Ino, from: u64, to: u64) -> KeyRange {
    KeyRange { from: hardened(ino, from), to: hardened(ino, to) }
}

/// An orphan's key.
pub fn orphan(ino: Ino) -> Vec<u8> {
    numbered(Table::Orphan, ino.0)
}

/// A pending range's key.
pub fn pending(id: u64) -> Vec<u8> {
    numbered(Table::Pending, id)
}

/// A reserved object's key.
pub fn reserved(object: ObjectId) -> Vec<u8> {
    numbered(Table::Reserved, object.0)
}

/// A client's key.
pub fn session(client: ClientId) -> Vec<u8> {
    numbered(Table::Session, client.0)
}

/// The key of a counted change's answer. Changes that are a whole window apart share one place.
pub fn answer(client: ClientId, sequence: u64) -> Vec<u8> {
    named(Table::Session, client.0, &(sequence % WINDOW_CHANGES).to_be_bytes())
}

/// A single record's key.
pub fn global(name: &str) -> Vec<u8> {
    let mut key = vec![Table::Global as u8, 0, 0];
    key.extend_from_slice(name.as_bytes());
    key
}

/// All keys of a table.
pub fn whole(table: Table) -> KeyRange {
    KeyRange { from: vec![table as u8, 0, 0], to: vec![table as u8, 0, 1] }
}

/// The keys of a table with numbers above `number`.
pub fn above(table: Table, number: u64) -> KeyRange {
    let from = match number.checked_add(1) {
        Some(next) => numbered(table, next),
        None => vec![table as u8, 0, 1],
    };
    KeyRange { from, to: vec![table as u8, 0, 1] }
}

/// The keys of a table that begin with `number`.
pub fn under(table: Table, number: u64) -> KeyRange {
    let from = numbered(table, number);
    let to = above(table, number).from;
    KeyRange { from, to }
}

/// A directory's names from this one on.
pub fn names_from(directory: Ino, name: &[u8]) -> KeyRange {
    KeyRange { from: dentry(directory, name), to: under(Table::Dentry, directory.0).to }
}

/// A directory's places after `after`.
pub fn places_after(directory: Ino, after: Cookie) -> KeyRange {
    let to = above(Table::Cookie, directory.0).from;
    let from = match after.checked_add(1) {
        Some(next) => cookie(directory, next),
        None => to.clone(),
    };
    KeyRange { from, to }
}

/// The number that follows table and shard. `None` if the key is malformed.
pub fn number_of(key: &[u8]) -> Option<u64> {
    let bytes = key.get(NUMBER_AT..NAME_AT)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// The name that follows the number.
pub fn name_of(key: &[u8]) -> &[u8] {
    key.get(NAME_AT..).unwrap_or_default()
}

/// The unit of a key made by [`hardened`]. `None` if the key is malformed.
pub fn unit_of(key: &[u8]) -> Option<u64> {
    cookie_of(key)
}

/// The cookie of a key made by [`cookie`]. `None` if the key is malformed.
pub fn cookie_of(key: &[u8]) -> Option<Cookie> {
    Some(u64::from_be_bytes(name_of(key).try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers_and_stay_in_their_ranges() {
        assert!(inode(Ino(255)) < inode(Ino(256)));
        assert!(cookie(Ino(1), 255) < cookie(Ino(1), 256));
        assert!(cookie(Ino(1), u64::MAX) < cookie(Ino(2), 0));
        for number in [0, 1, 255, 256, u64::MAX] {
            let range = under(Table::Dentry, number);
            let key = dentry(Ino(number), &[0xff; 255]);
            assert!(range.from <= key && key < range.to, "{number}");
            assert_eq!(number_of(&key), Some(number));
            assert_eq!(name_of(&key), [0xff; 255]);
        }
        assert_eq!(cookie_of(&cookie(Ino(7), 9)), Some(9));
        assert_eq!(places_after(Ino(7), 8).from, cookie(Ino(7), 9));
    }

    #[test]
    fn the_bytes_of_keys_never_change() {
        assert_eq!(inode(Ino(0x0102)), b"I\0\0\0\0\0\0\0\0\x01\x02");
        assert_eq!(dentry(Ino(1), b"a"), b"D\0\0\0\0\0\0\0\0\0\x01a");
        assert_eq!(cookie(Ino(1), 3), b"C\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x03");
        assert_eq!(xattr(Ino(1), b"user.a"), b"X\0\0\0\0\0\0\0\0\0\x01user.a");
        assert_eq!(hardened(Ino(1), 2), b"H\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02");
        assert_eq!(orphan(Ino(1)), b"O\0\0\0\0\0\0\0\0\0\x01");
        assert_eq!(pending(1), b"P\0\0\0\0\0\0\0\0\0\x01");
        assert_eq!(reserved(ObjectId(1)), b"N\0\0\0\0\0\0\0\0\0\x01");
        assert_eq!(session(ClientId(1)), b"R\0\0\0\0\0\0\0\0\0\x01");
        let place = b"R\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02";
        assert_eq!(answer(ClientId(1), WINDOW_CHANGES + 2), place);
        assert_eq!(global("counters"), b"G\0\0counters");
    }
}
