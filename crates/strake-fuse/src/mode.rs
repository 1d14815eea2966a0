//! Keeps the [`Vfs`] informed of how it is mounted.
//!
//! The kernel tells a FUSE daemon neither the options of its mount nor that they were changed
//! (`mount -o remount`). Its list of mounts has them, and polling that list wakes up when it
//! changes. So a thread reads the options from the list whenever it changes, in whichever way that
//! was done. Several mounts of one file system (bind mounts) may differ in access times; those of
//! the first one count.
//!
//! The kernel has already refused a remount as read-only while a file is open for writing. After
//! one that it accepts, this thread makes everything durable.
//!
//! A request may come before this thread has read the list. If the kernel lets a change through and
//! the `Vfs` still believes that it is read-only, the adapter has the list read again and repeats
//! the request ([`ModeWatch::look`]).

use crate::mountinfo::{self, Place};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use std::fs::File;
use std::sync::Arc;
use strake_client::Vfs;
use strake_client::mode::{AccessTimes, MountMode};
use strake_env::sync::Mutex;
use strake_proto::Result;
use tracing::{error, info, warn};

/// How often the list is read even if the kernel has announced no change. It is half of the time
/// after which a request is overdue, so that one is told of soon enough.
const LOOK_SECONDS_MAX: i64 = 5;

/// See the head of this file.
pub(crate) struct ModeWatch {
    vfs: Arc<dyn Vfs>,
    /// The mount as the kernel listed it at first.
    first: Place,
    /// The connection that serves it.
    connection: OwnedFd,
    /// Held from reading the list until the `Vfs` is told: an older list never comes after a newer
    /// one.
    looking: Mutex<()>,
    /// Can be read once the mount is gone. Then the watch ends.
    ended: OwnedFd,
}

impl ModeWatch {
    /// The watch of the mount `first`, which `connection` serves.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn new(vfs: Arc<dyn Vfs>, first: Place, connection: &OwnedFd) -> Result<ModeWatch> {
        let ended = eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let connection = connection.try_clone()?;
        Ok(ModeWatch { vfs, first, connection, looking: Mutex::new(()), ended })
    }

    /// The watch of the mount `/proc`, as if this process served it.
    #[cfg(test)]
    pub(crate) fn of_proc(vfs: Arc<dyn Vfs>) -> ModeWatch {
        let proc = mountinfo::at(std::path::Path::new("/proc")).expect("a list of mounts");
        let first = proc.expect("/proc is mounted");
        // A counter of events never ends, and so it stands for a connection that goes on.
        let connection = eventfd(0, EventfdFlags::CLOEXEC).expect("made");
        ModeWatch::new(vfs, first, &connection).expect("made")
    }

    /// The places where the file system is mounted, the first one first.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn places(&self) -> Result<Vec<Place>> {
        let mut places = mountinfo::list()?;
        places.retain(|place| place.device == self.first.device);
        // The kernel ends the connection before it gives the device number to another file system.
        // So the list was right if the connection had not ended after it was read.
        if !self.has_ended()? {
            return Ok(places);
        }
        // A connection that was aborted leaves mounts behind. They are told from those of another
        // file system by this: nobody serves them.
        let is_ours = |place: &Place| {
            place.kind == self.first.kind
                && place.source == self.first.source
                && mountinfo::is_dead(&place.path)
        };
        places.retain(is_ours);
        Ok(places)
    }

    /// Whether the kernel sends no more requests, because the mount is gone or was aborted.
    fn has_ended(&self) -> Result<bool> {
        let mut state = [PollFd::new(&self.connection, PollFlags::empty())];
        poll(&mut state, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
            .map_err(std::io::Error::from)?;
        Ok(state[0].revents().contains(PollFlags::ERR))
    }

    /// Whether something is mounted below, for whatever program. Also true if that is not known.
    pub(crate) fn is_covered(&self) -> bool {
        mountinfo::is_covered(&self.first.device).unwrap_or_else(|error| {
            warn!(target: "fuse", "the list of mounts cannot be read: {error}");
            true
        })
    }

    /// Reads the options, and tells the `Vfs` if they have changed. True if it may be changed now.
    ///
    /// Whether the options differ from those before says nothing to a request that was refused: the
    /// thread may have told the `Vfs` in between.
    pub(crate) fn look(&self) -> bool {
        let looking = self.looking.lock();
        let places = self.places().unwrap_or_else(|error| {
            warn!(target: "fuse", "the list of mounts cannot be read: {error}");
            Vec::new()
        });
        let Some(place) = places.first() else {
            // A mount that was taken out of the tree keeps its options.
            return !self.vfs.mode().read_only;
        };
        let (mode, before) = (mode_of(place), self.vfs.mode());
        if mode == before {
            return !mode.read_only;
        }
        self.vfs.set_mode(mode);
        drop(looking);
        info!(target: "fuse", "mounted {},{}", place.options, place.shared_options);
        if mode.read_only
            && !before.read_only
            && let Err(error) = self.vfs.sync()
        {
            error!(target: "fuse", "not all data is durable, although mounted read-only: {error}");
        }
        !mode.read_only
    }

    /// Looks whenever the list changes, until [`ModeWatch::end`] is called. Before each look it
    /// calls `also`, which may be done every [`LOOK_SECONDS_MAX`].
    pub(crate) fn watch(&self, also: &dyn Fn()) -> Result<()> {
        let list = File::open("/proc/self/mountinfo")?;
        let limit = Timespec { tv_sec: LOOK_SECONDS_MAX, tv_nsec: 0 };
        loop {
            also();
            self.look();
            let mut waits = [
                PollFd::new(&list, PollFlags::PRI | PollFlags::ERR),
                PollFd::new(&self.ended, PollFlags::IN),
            ];
            match poll(&mut waits, Some(&limit)) {
                Ok(_) if waits[1].revents().contains(PollFlags::IN) => return Ok(()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
    }

    /// Ends the watch.
    pub(crate) fn end(&self) {
        // A counter of 64 bits takes any number of ones.
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
    }
}

fn mode_of(place: &Place) -> MountMode {
    let sync = place.shares("sync");
    MountMode {
        read_only: place.shares("ro"),
        sync,
        sync_names: sync || place.shares("dirsync"),
        access_times: match () {
            () if place.has("noatime") => AccessTimes::Never,
            () if place.has("relatime") => AccessTimes::Relative,
            // The list has no word for it.
            () => AccessTimes::Always,
        },
        no_directory_times: place.has("nodiratime"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz_test::Agreeing;

    #[test]
    fn a_request_is_repeated_also_if_another_thread_has_seen_the_remount() {
        let vfs = Arc::new(Agreeing::default());
        let watch = ModeWatch::of_proc(Arc::clone(&vfs) as Arc<dyn Vfs>);
        vfs.set_mode(MountMode { read_only: true, ..MountMode::default() });
        assert!(watch.look(), "the request that finds the remount first");
        assert!(watch.look(), "a request that was refused before the other one looked");
    }
}
