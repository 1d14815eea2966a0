//! For whom a thread works at this moment: the request, the program that made it, and its file.
//!
//! A thread that answers a request takes the request's cause ([`take`]). [`crate::FanOut`] hands
//! the cause of a job's owner to the threads that run the job's parts, and queues keep it with what
//! is queued. So an I/O on a disk can be told from which request it came, although another thread
//! does it. A cause changes nothing that is done. It is only ever recorded.

use std::cell::Cell;

/// For whom a thread works. All zeros: for nobody in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The number of the request, as the kernel gave it.
    pub request: u64,
    /// The file or directory that the request names.
    pub inode: u64,
    /// The process that made the request.
    pub process: u32,
}

crate::local! {
    static CAUSE: Cell<Cause> = const { Cell::new(Cause { request: 0, inode: 0, process: 0 }) };
}

/// For whom the calling thread works.
pub fn current() -> Cause {
    CAUSE.get()
}

/// The calling thread works for `cause` until the guard is dropped.
#[must_use = "the cause ends when the guard is dropped"]
pub fn take(cause: Cause) -> CauseGuard {
    CauseGuard { before: CAUSE.replace(cause) }
}

/// The calling thread works for a file at least, if it works for nobody in particular.
#[must_use = "the cause ends when the guard is dropped"]
pub fn take_file(inode: u64) -> Option<CauseGuard> {
    let cause = current();
    (cause.inode == 0).then(|| take(Cause { inode, ..cause }))
}

/// See [`take`]. Dropping it brings back the cause from before.
pub struct CauseGuard {
    before: Cause,
}

impl Drop for CauseGuard {
    fn drop(&mut self) {
        CAUSE.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FanOut;
    use crate::sync::Mutex;

    const CAUSE: Cause = Cause { request: 7, inode: 12, process: 300 };

    #[test]
    fn a_cause_lasts_as_long_as_its_guard() {
        assert_eq!(current(), Cause::default());
        let outer = take(CAUSE);
        let inner = take(Cause { request: 9, ..CAUSE });
        assert_eq!(current().request, 9);
        drop(inner);
        assert_eq!(current(), CAUSE);
        assert!(take_file(13).is_none(), "its request names another one");
        drop(outer);
        let file = take_file(13);
        assert_eq!(current(), Cause { inode: 13, ..Cause::default() });
        drop(file);
        assert_eq!(current(), Cause::default());
    }

    #[test]
    fn the_parts_of_a_job_have_the_cause_of_its_owner_and_the_next_job_has_its_own() {
        let fan = FanOut::new("fan", 3).expect("threads");
        let seen = |count| {
            let seen = Mutex::new(Vec::new());
            fan.run(count, &|_| seen.lock().push(current()));
            seen.into_inner()
        };
        for round in 0..50 {
            let cause = Cause { request: round, ..CAUSE };
            let guard = take(cause);
            assert_eq!(seen(8), vec![cause; 8]);
            drop(guard);
            assert_eq!(seen(8), vec![Cause::default(); 8]);
        }
    }
}
