//! The work of each thread of the daemon, and of the server process of its node, at this moment:
//! `strake diag threads`.
//!
//! The kernel knows the threads and their times, the registry of waits knows what they wait for,
//! and the adapter which requests they answer. All three name a thread by the kernel's number.

use super::serve::Daemon;
use crate::node::NodeRequest;
use crate::show::ShowThread;
use strake_env::process::{self, ThreadTimes};
use strake_fuse::Answering;
use strake_observe::WaiterSnapshot;
use strake_observe::wait_chain::{innermost, what};
use strake_proto::Result;

impl Daemon {
    /// All threads, those that do something first. Beside the daemon's are those of its node.
    pub(super) fn threads(&self) -> Result<Vec<ShowThread>> {
        let (waits, requests) =
            (self.observe.waiters.snapshot_with_locks(), self.mount.answering());
        let mut all = described(process::threads()?, &waits, &requests);
        let of_node: Vec<ShowThread> = self.ask_own_node(NodeRequest::Threads);
        all.extend(
            of_node.into_iter().map(|it| ShowThread { name: of_node_named(&it.name), ..it }),
        );
        sort(&mut all);
        Ok(all)
    }
}

fn sort(all: &mut [ShowThread]) {
    all.sort_by_key(|it| (!it.is_busy, std::cmp::Reverse(it.processor_ns), it.number));
}

/// The name of a thread of the node's server process, beside those of the daemon.
pub(super) fn of_node_named(thread: &str) -> String {
    format!("{thread} (node)")
}

/// Describes threads, those that do something first.
pub(crate) fn described(
    threads: Vec<ThreadTimes>,
    waits: &[WaiterSnapshot],
    requests: &[Answering],
) -> Vec<ShowThread> {
    let mut all: Vec<ShowThread> =
        threads.into_iter().map(|it| described_one(it, waits, requests)).collect();
    sort(&mut all);
    all
}

fn described_one(
    thread: ThreadTimes,
    waits: &[WaiterSnapshot],
    requests: &[Answering],
) -> ShowThread {
    let ThreadTimes { number, name, state, processor_ns, queued_ns } = thread;
    let wait = innermost(waits, number);
    let request = requests.iter().find(|it| it.thread == number);
    let answers = request.map(|it| format!("answers {} of inode {}", it.name, it.inode));
    let waits = wait.map(|wait| format!("waits {}", what(wait)));
    let parts: Vec<String> = answers.into_iter().chain(waits).collect();
    let is_busy = !parts.is_empty() || state != 'S';
    let does = match state {
        _ if !parts.is_empty() => parts.join(", "),
        'R' => "works".to_owned(),
        'D' => "is in the kernel, which waits for a disk".to_owned(),
        'S' => "has nothing to do".to_owned(),
        other => format!("is in the state {other} of the kernel"),
    };
    // The kernel keeps 15 bytes of a name, and the registry of waits all of it.
    let name = wait.map_or(name, |wait| wait.thread.clone());
    ShowThread { name, number, processor_ns, queued_ns, is_busy, does }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_thread_has_what_it_answers_and_waits_for_and_idle_ones_come_last() {
        let thread = |number, name: &str, state, processor_ns| {
            let (name, queued_ns) = (name.to_owned(), 7);
            ThreadTimes { number, name, state, processor_ns, queued_ns }
        };
        let threads = vec![
            thread(1, "admin", 'S', 900),
            thread(2, "fuse-3", 'S', 500),
            thread(3, "a name that is ", 'S', 800),
            thread(4, "fuse-4", 'R', 700),
            thread(5, "disk", 'D', 100),
        ];
        let wait = |number, thread: &str, reason: &str| WaiterSnapshot {
            thread: thread.to_owned(),
            number,
            reason: reason.to_owned(),
            detail: "nsd 1".to_owned(),
            waited: Duration::from_millis(1500),
            ..WaiterSnapshot::default()
        };
        let waits = [
            wait(2, "fuse-3", "NSD commit"),
            wait(3, "a name that is longer", "a reason"),
            wait(0, "process 9", "lock"),
        ];
        let requests = [Answering { thread: 2, name: "fuse_fsync", inode: 12 }];
        let all = described(threads, &waits, &requests);
        let seen: Vec<(&str, &str)> =
            all.iter().map(|it| (it.name.as_str(), it.does.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("a name that is longer", "waits 1.50 s for 'a reason nsd 1'"),
                ("fuse-4", "works"),
                ("fuse-3", "answers fuse_fsync of inode 12, waits 1.50 s for 'NSD commit nsd 1'"),
                ("disk", "is in the kernel, which waits for a disk"),
                ("admin", "has nothing to do"),
            ]
        );
    }
}
