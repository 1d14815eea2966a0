//! Chains of waits. A thread waits for a lock, the thread that holds the lock waits for a disk: the
//! disk is what holds both up. A chain leads from a wait to this root, as far as it is known.
//!
//! Waits and holders are matched by the kernel's number of their thread. The list is of one moment,
//! so a chain is one of that moment.

use crate::format;
use crate::slow::time;
use crate::waiters::{WaitHolder, WaiterSnapshot, print_waiter};
use std::fmt;

/// The wait of a thread at this moment: of waits within each other, the innermost.
pub fn innermost(waits: &[WaiterSnapshot], thread: u32) -> Option<&WaiterSnapshot> {
    let own = waits.iter().filter(|wait| thread != 0 && wait.number == thread);
    own.min_by_key(|wait| wait.waited)
}

/// The waits behind a wait, a sentence for each step to the root. It is empty if the wait
/// itself is the root, or nothing more is known.
pub fn chain(waits: &[WaiterSnapshot], of: &WaiterSnapshot) -> Vec<String> {
    let (mut steps, mut seen, mut wait) = (Vec::new(), vec![of.number], of);
    loop {
        if let Some(holder) = wait.holders.first() {
            let WaitHolder { thread, number, held_ns } = holder;
            let held = format!("{thread} has held it for {}", time(*held_ns));
            let Some(next) = innermost(waits, *number) else {
                steps.push(format!("{held}, and waits for nothing that has a name"));
                return steps;
            };
            if seen.contains(number) {
                steps.push(format!("{held}, and waits in this chain itself: a deadlock"));
                return steps;
            }
            steps.push(format!("{held}, and waits {}", what(next)));
            seen.push(*number);
            wait = next;
            continue;
        }
        // The wait may be for something of which a part is waited for now.
        match innermost(waits, wait.number) {
            Some(inner) if inner.waited < wait.waited => {
                steps.push(format!("at this moment it waits {}", what(inner)));
                wait = inner;
            }
            _ => return steps,
        }
    }
}

/// `3.2 s for 'NSD I/O completion write, NSD 2'`.
pub fn what(wait: &WaiterSnapshot) -> String {
    let waited = time(u64::try_from(wait.waited.as_nanos()).unwrap_or(u64::MAX));
    let gap = if wait.detail.is_empty() { "" } else { " " };
    format!("{waited} for '{}{gap}{}'", wait.reason, wait.detail)
}

/// Prints waits as [`crate::print_waiters`] does, each with its chain below it.
///
/// # Errors
/// Those of `out`.
pub fn print_wait_chains(
    out: &mut dyn fmt::Write,
    waits: &[WaiterSnapshot],
    utc_offset_seconds: i64,
) -> fmt::Result {
    for wait in waits {
        print_waiter(out, wait, utc_offset_seconds)?;
        chain(waits, wait).iter().try_for_each(|step| writeln!(out, "        {step}"))?;
    }
    Ok(())
}

/// The time of day, for listings that are printed again and again.
pub fn time_of_day(at: strake_proto::Timestamp) -> String {
    format::time_of_day(at, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn wait(number: u32, reason: &str, seconds: u64) -> WaiterSnapshot {
        WaiterSnapshot {
            thread: format!("thread-{number}"),
            number,
            reason: reason.to_owned(),
            waited: Duration::from_secs(seconds),
            ..WaiterSnapshot::default()
        }
    }

    fn held(wait: WaiterSnapshot, by: u32, seconds: u64) -> WaiterSnapshot {
        let thread = format!("thread-{by}");
        let holders = vec![WaitHolder { thread, number: by, held_ns: seconds * 1_000_000_000 }];
        WaiterSnapshot { holders, ..wait }
    }

    #[test]
    fn a_chain_leads_over_holders_and_inner_waits_to_the_root() {
        let mut disk = wait(3, "NSD I/O completion", 7);
        disk.detail = "write, NSD 2".to_owned();
        let waits = [
            held(wait(1, "a lock", 9), 2, 12),
            wait(2, "sync of a file", 11),
            held(wait(2, "another lock", 8), 3, 10),
            disk,
        ];
        assert_eq!(
            chain(&waits, &waits[0]),
            [
                "thread-2 has held it for 12.0 s, and waits 8.00 s for 'another lock'",
                "thread-3 has held it for 10.0 s, and waits 7.00 s for 'NSD I/O completion write, \
                 NSD 2'",
            ]
        );
        let outer = chain(&waits, &waits[1]);
        assert_eq!(outer[0], "at this moment it waits 8.00 s for 'another lock'");
        assert_eq!(outer.len(), 2);
        assert_eq!(chain(&waits, &waits[3]), [] as [String; 0], "it is the root");
        let mut text = String::new();
        print_wait_chains(&mut text, &waits[2..], 0).expect("a string takes all");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("        thread-3 has held it for 10.0 s"), "{text}");
    }

    #[test]
    fn a_holder_that_works_and_a_circle_end_a_chain() {
        let works = [held(wait(1, "a lock", 9), 2, 12)];
        let nothing = "thread-2 has held it for 12.0 s, and waits for nothing that has a name";
        assert_eq!(chain(&works, &works[0]), [nothing]);
        let circle = [held(wait(1, "a lock", 9), 2, 12), held(wait(2, "b", 8), 1, 10)];
        let steps = chain(&circle, &circle[0]);
        assert_eq!(steps.len(), 2);
        assert!(steps[1].ends_with("waits in this chain itself: a deadlock"), "{steps:?}");
        // Requests without a thread are not one and the same.
        let requests = [wait(0, "lock", 5), wait(0, "lock", 4)];
        assert!(chain(&requests, &requests[0]).is_empty());
    }
}
