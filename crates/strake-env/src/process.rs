//! What a process or thread asks the kernel about itself.
#![allow(unsafe_code, reason = "calls about descriptors by their numbers, and about the scheduler")]

use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use strake_proto::{Error, ErrorKind, Result};

/// The nice value of a thread that gives way: it gets a tenth of the share of others.
const NICE: i32 = 10;
/// What a simulated process has in memory.
#[cfg(any(test, feature = "simulation"))]
const SIMULATED_BYTES: u64 = 64 << 20;
/// The first descriptor behind the standard ones.
const FIRST_OTHER: libc::c_uint = 3;

/// Makes the calling thread give way to others from now on, because its work can as well be done
/// later. Only a thread that holds locks just for moments may call this: a thread that waits for
/// such a lock also waits until this one gets the processor.
pub fn give_way() {
    // A simulated thread has the processor whenever it is its turn.
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::is_simulated() {
        return;
    }
    // On Linux both calls concern the calling thread. If they are refused, the thread goes on as
    // any.
    let _ = setpriority_process(None, NICE);
    // The kernel's `sched_param`. musl's function does nothing, so the kernel is asked itself.
    let priority: libc::c_int = 0;
    // A small share alone does not help the waker of such a thread. A thread that has slept is owed
    // time, and takes the processor from its waker at once, for as long as a turn. A batch thread
    // waits for its turn.
    // SAFETY: the parameters are read during the call only.
    let _ = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority)
    };
}

/// The processor time that the calling thread has had.
pub fn thread_time() -> Duration {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(now) = crate::simulation::now() {
        return now;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Bytes of this process that are in memory now, the program itself among them (proc(5), `VmRSS`).
///
/// # Errors
/// The host's errors, if it does not tell.
pub fn resident_bytes() -> Result<u64> {
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::is_simulated() {
        return Ok(SIMULATED_BYTES);
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes
        .map(|kibibytes| kibibytes << 10)
        .ok_or_else(|| Error::new(ErrorKind::Internal, "/proc/self/status has no VmRSS"))
}

/// Times of the machine and of this process. What the host does not tell is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTimes {
    /// The time of all processors together, idle or not, in nanoseconds.
    pub all: u64,
    /// Of this, the time in which they were not idle.
    pub busy: u64,
    /// The processor time of this process in nanoseconds.
    pub own: u64,
    /// Bytes that the machine's network interfaces received, except the one to itself.
    pub received: u64,
    /// Bytes that they sent.
    pub sent: u64,
}

/// Asks the kernel for the times until now (proc(5)).
pub fn machine_times() -> MachineTimes {
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::is_simulated() {
        return MachineTimes::default();
    }
    let (all, busy) = std::fs::read_to_string("/proc/stat").map_or((0, 0), |it| processors(&it));
    let network = std::fs::read_to_string("/proc/net/dev");
    let (received, sent) = network.map_or((0, 0), |text| network_bytes(&text));
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = own.tv_sec.unsigned_abs() * NANOS_PER_SECOND + own.tv_nsec.unsigned_abs();
    MachineTimes { all, busy, own, received, sent }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// All and busy nanoseconds from the first line of `/proc/stat`.
fn processors(text: &str) -> (u64, u64) {
    let line = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> =
        line.into_iter().flat_map(str::split_whitespace).filter_map(|it| it.parse().ok()).collect();
    // The first eight are disjoint: user, nice, system, idle, iowait, irq, softirq, steal.
    let tick = NANOS_PER_SECOND / rustix::param::clock_ticks_per_second().max(1);
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all * tick, (all - idle) * tick)
}

/// Bytes received and sent from `/proc/net/dev`.
fn network_bytes(text: &str) -> (u64, u64) {
    let interfaces = text.lines().filter_map(|line| line.trim().split_once(':'));
    let others = interfaces.filter(|(name, _)| *name != "lo");
    others.fold((0, 0), |(received, sent), (_, counts)| {
        let mut counts = counts.split_whitespace().map(|it| it.parse::<u64>().unwrap_or(0));
        (received + counts.next().unwrap_or(0), sent + counts.nth(7).unwrap_or(0))
    })
}

/// A thread of this process, and its times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// The kernel's number of it.
    pub number: u32,
    /// The first 15 bytes of its name.
    pub name: String,
    /// `R` if it runs or could, `S` if it sleeps, `D` if it waits for a disk in the kernel.
    pub state: char,
    /// Its time on processors.
    pub processor_ns: u64,
    /// The time in which it was ready and waited for a processor. 0 if the kernel counts none.
    pub queued_ns: u64,
}

/// The threads of this process (proc(5)).
///
/// # Errors
/// The host's.
pub fn threads() -> Result<Vec<ThreadTimes>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        // A thread that has ended meanwhile has no files any more.
        let Ok(stat) = std::fs::read(path.join("stat")) else { continue };
        let times = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        threads.extend(thread_times(&String::from_utf8_lossy(&stat), &times));
    }
    Ok(threads)
}

/// Reads `stat` and `schedstat` of a thread. A name may hold anything, parentheses too.
fn thread_times(stat: &str, schedstat: &str) -> Option<ThreadTimes> {
    let (number, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut times = schedstat.split_whitespace().map(|it| it.parse().unwrap_or(0));
    Some(ThreadTimes {
        number: number.parse().ok()?,
        name: name.to_owned(),
        state: rest.chars().next()?,
        processor_ns: times.next().unwrap_or(0),
        queued_ns: times.next().unwrap_or(0),
    })
}

/// The name of another process (proc(5), `comm`). `None` if it has ended, or for 0, which stands
/// for the kernel.
pub fn name(process: u32) -> Option<String> {
    #[cfg(any(test, feature = "simulation"))]
    if crate::simulation::is_simulated() {
        return None;
    }
    if process == 0 {
        return None;
    }
    let name = std::fs::read(format!("/proc/{process}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// Keeps the open files of this process, except the standard ones, from programs that it starts
/// from now on. A daemon must not hold the locks and pipes of a script that started it.
pub fn keep_descriptors() {
    // SAFETY: no descriptor is closed here and none changes what it refers to; only what exec(2)
    // does with them.
    // musl has no function for it.
    let kept = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_OTHER,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    // Linux 5.11 has it, and 5.17 is needed anyway.
    debug_assert_eq!(kept, 0, "close_range");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_from_the_kernels_tables_whatever_its_name_holds() {
        let expected = ThreadTimes {
            number: 71,
            name: "a) S (b".to_owned(),
            state: 'D',
            processor_ns: 1200,
            queued_ns: 30,
        };
        let stat = "71 (a) S (b) D 1 2 3";
        assert_eq!(thread_times(stat, "1200 30 4\n"), Some(expected.clone()));
        let uncounted = ThreadTimes { processor_ns: 0, queued_ns: 0, ..expected };
        assert_eq!(thread_times(stat, ""), Some(uncounted));
        assert_eq!(thread_times("", ""), None);
        let (all, own) = (threads().expect("/proc"), crate::thread::number());
        assert!(all.iter().any(|it| it.number == own && it.state == 'R'), "{all:?}");
    }

    #[test]
    fn the_times_of_the_machine_are_read_from_the_kernels_tables() {
        let tick = NANOS_PER_SECOND / rustix::param::clock_ticks_per_second();
        let stat = "cpu  10 20 30 400 5 6 7 8 90 100\ncpu0 1 2 3 4\n";
        assert_eq!(processors(stat), (486 * tick, 81 * tick));
        assert_eq!(processors(""), (0, 0));
        let dev = "Inter-|   Receive  |  Transmit\n face |bytes packets | bytes packets\n    \
                   lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 70 1 0 0 0 0 0 0\n";
        assert_eq!(network_bytes(dev), (100, 70));
        let now = machine_times();
        assert!(now.own > 0 && now.busy > 0 && now.all >= now.busy, "{now:?}");
    }
}
