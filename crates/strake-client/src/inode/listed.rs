//! Reads ahead of programs that read small files one after the other: `grep -r`, `tar`, `cp -r`.
//!
//! Such a program lists a directory, reads its files in the order of the listing, and waits for a
//! disk at each of them. So the client remembers recently listed files in their order. When a file
//! is read, and a file listed shortly before it was read, too, the next files are fetched while the
//! program is busy with this one. No other order than that of a listing is guessed. Each file is
//! fetched once for each listing, so a wrong guess costs [`AHEAD`] small reads.

use crate::memory::numbers::NumberMap;
use std::collections::VecDeque;
use strake_env::sync::Mutex;
use strake_proto::Ino;
use strake_proto::meta::{FileData, Inode};

/// So many recently listed files are remembered.
const LISTED_MAX: usize = 8192;
/// Longer files are not remembered: the read-ahead within the file serves their readers.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// A listing counts as being read if one of so many files before the current one was read.
const NEAR: u64 = 4;
/// So many files are fetched ahead.
const AHEAD: u64 = 16;

struct Listed {
    ino: Ino,
    read: bool,
    fetched: bool,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct Neighbours {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In the order of listing. The places go on counting for ever; `first` is that of the oldest.
    files: VecDeque<Listed>,
    first: u64,
    /// The last place of each file.
    places: NumberMap<Ino, u64>,
}

impl State {
    fn list(&mut self, ino: Ino) {
        if self.files.len() == LISTED_MAX
            && let Some(oldest) = self.files.pop_front()
        {
            if self.places.get(&oldest.ino) == Some(&self.first) {
                self.places.remove(&oldest.ino);
            }
            self.first += 1;
        }
        self.places.insert(ino, self.first + self.files.len() as u64);
        self.files.push_back(Listed { ino, read: false, fetched: false });
    }

    fn at(&mut self, place: u64) -> Option<&mut Listed> {
        self.files.get_mut(usize::try_from(place.checked_sub(self.first)?).ok()?)
    }

    /// Notes that a file is read from its beginning. Returns the files to be fetched now.
    fn read(&mut self, ino: Ino) -> Vec<Ino> {
        let Some(&place) = self.places.get(&ino) else { return Vec::new() };
        if let Some(listed) = self.at(place) {
            (listed.read, listed.fetched) = (true, true);
        }
        let before = place.saturating_sub(NEAR)..place;
        let goes_on = before.rev().any(|place| self.at(place).is_some_and(|listed| listed.read));
        let ahead = if goes_on { AHEAD } else { 0 };
        let mut wanted = Vec::new();
        for next in place + 1..=place + ahead {
            let Some(listed) = self.at(next) else { break };
            if !std::mem::replace(&mut listed.fetched, true) {
                wanted.push(listed.ino);
            }
        }
        wanted
    }
}

impl Neighbours {
    /// Notes a file in the order of a listing.
    pub(crate) fn list(&self, inode: &Inode) {
        let small = (1..=FILE_BYTES_MAX).contains(&inode.attr.size);
        if small && matches!(inode.data, FileData::Objects(_)) {
            self.state.lock().list(inode.attr.ino);
        }
    }

    /// Notes that a file is read from its beginning. Returns the files to be fetched now.
    pub(crate) fn read(&self, ino: Ino) -> Vec<Ino> {
        self.state.lock().read(ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use crate::vfs::vfs_test::{create, lookup, open, pattern, read, write};
    use crate::vfs::{OpenFlags, Vfs};
    use std::time::Duration;
    use strake_env::RealClock;

    /// A wait that lasts longer is a fault.
    const WAIT_MAX: Duration = Duration::from_secs(60);

    fn numbers(inos: &[Ino]) -> Vec<u64> {
        inos.iter().map(|ino| ino.0).collect()
    }

    #[test]
    fn files_read_in_the_order_of_their_listing_bring_the_next_ones() {
        let mut state = State::default();
        (100..200).for_each(|ino| state.list(Ino(ino)));
        assert!(state.read(Ino(110)).is_empty(), "one alone tells nothing");
        assert!(state.read(Ino(150)).is_empty(), "nor do two far apart");
        assert_eq!(numbers(&state.read(Ino(112))), (113..=128).collect::<Vec<_>>());
        assert_eq!(numbers(&state.read(Ino(113))), [129], "each is fetched once");
        assert!(state.read(Ino(111)).is_empty(), "one of these was read, and all are fetched");
        assert_eq!(numbers(&state.read(Ino(152))), (153..=168).collect::<Vec<_>>());
        (196..200).for_each(|ino| drop(state.read(Ino(ino))));
        assert!(state.read(Ino(1000)).is_empty());
    }

    #[test]
    fn only_the_last_listed_are_remembered_and_the_last_place_of_each() {
        let mut state = State::default();
        let last = 3 * LISTED_MAX as u64;
        (1..=last).for_each(|ino| state.list(Ino(ino)));
        assert_eq!((state.files.len(), state.places.len()), (LISTED_MAX, LISTED_MAX));
        assert!(state.read(Ino(1)).is_empty() && state.read(Ino(2)).is_empty());
        state.list(Ino(last - 1));
        assert!(state.read(Ino(last)).is_empty());
        assert!(state.read(Ino(last - 1)).is_empty(), "nothing is listed behind it");
        (0..LISTED_MAX as u64).for_each(|_| state.list(Ino(7)));
        assert_eq!(state.places.len(), 1, "what was forgotten takes no memory");
    }

    #[test]
    fn small_files_that_follow_in_a_listing_are_fetched_before_they_are_read() {
        let rig = Rig::new("4+2p", 6);
        let vfs = rig.start(0);
        let name = |at: u8| format!("file{at:02}");
        for at in 0..12 {
            let (_, handle) = create(&vfs, &name(at));
            write(&vfs, handle, 0, &pattern(30_000, at));
            vfs.release(handle);
        }
        vfs.sync().expect("synced");
        vfs.shutdown().expect("ended");
        drop(vfs);
        let vfs = rig.start(0);
        // As the adapter does, for whom the kernel keeps what it was told of.
        let mut listed = Vec::new();
        vfs.readdir(Ino::ROOT, 0, true, &mut |item| {
            listed.push(item.ino);
            true
        })
        .expect("listed");
        listed.iter().for_each(|ino| vfs.remember(*ino));
        for at in [0, 1] {
            let handle = open(&vfs, &name(at)).1;
            assert!(read(&vfs, handle, 0, 4096) == pattern(30_000, at)[..4096]);
        }
        let clock = RealClock::shared();
        let start = clock.monotonic();
        for at in 2..12 {
            let inode = vfs.mount.table.pin(lookup(&vfs, &name(at)).attr.ino);
            let file = vfs.mount.file(&inode).expect("a file");
            while file.find_block(0).is_none() {
                assert!(clock.monotonic() - start < WAIT_MAX, "file {at} is not fetched");
                strake_env::thread::yield_now();
            }
            let handle = vfs.open(&strake_proto::Caller::ROOT, inode.ino, OpenFlags::READ_WRITE);
            let handle = handle.expect("opened").handle;
            assert!(read(&vfs, handle, 0, 30_000) == pattern(30_000, at));
        }
        vfs.shutdown().expect("ended");
    }
}
