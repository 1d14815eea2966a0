//! Facts about this host: name, processors, memory, free space, caches.
//!
//! Reading and parsing are separate: the parsers take text and are tested with text. No function
//! needs privileges except `drop_system_caches`, which needs root.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};
use crate::outcome::CpuUse;

/// This host's name.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Jiffies that the processors have spent since boot, by kind of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    user: u64,
    system: u64,
    idle: u64,
    wait: u64,
}

impl CpuTimes {
    /// The counters now; zeroes if `/proc/stat` cannot be read.
    pub fn now() -> CpuTimes {
        parse_stat(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// How the time since `earlier` was spent.
    pub fn since(self, earlier: CpuTimes) -> CpuUse {
        let user = self.user.saturating_sub(earlier.user) as f64;
        let system = self.system.saturating_sub(earlier.system) as f64;
        let idle = self.idle.saturating_sub(earlier.idle) as f64;
        let wait = self.wait.saturating_sub(earlier.wait) as f64;
        // A run shorter than a clock tick has no ticks to divide.
        let all = (user + system + idle + wait).max(1.0);
        CpuUse { user: user / all, system: system / all, idle: idle / all, wait: wait / all }
    }
}

/// The first line of `/proc/stat`: user nice system idle iowait irq softirq steal …
fn parse_stat(text: &str) -> CpuTimes {
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    CpuTimes {
        user: field(0) + field(1),
        system: field(2) + field(5) + field(6) + field(7),
        idle: field(3),
        wait: field(4),
    }
}

/// The facts about a host that make a report understandable a year later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model, as the kernel names it.
    pub processor: String,
    /// Hardware threads.
    pub threads: usize,
    /// Physical cores.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl HostFacts {
    /// The facts of this host.
    pub fn gather() -> HostFacts {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let uname = rustix::system::uname();
        HostFacts {
            host: name(),
            kernel: uname.release().to_string_lossy().into_owned(),
            processor: processor_of(&cpuinfo),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            cores: cores_of(&cpuinfo),
            memory_bytes: memory_of(&meminfo),
        }
    }
}

fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (name, value) = line.split_once(':')?;
    (name.trim() == key).then(|| value.trim())
}

fn processor_of(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| value_of(line, "model name"));
    model.unwrap_or("unknown").to_string()
}

/// Counts distinct (socket, core) pairs, or hardware threads if the kernel names no cores.
fn cores_of(cpuinfo: &str) -> usize {
    let mut cores = std::collections::BTreeSet::new();
    let (mut socket, mut processors) = ("0", 0);
    for line in cpuinfo.lines() {
        if value_of(line, "processor").is_some() {
            processors += 1;
        } else if let Some(id) = value_of(line, "physical id") {
            socket = id;
        } else if let Some(core) = value_of(line, "core id") {
            cores.insert((socket, core));
        }
    }
    if cores.is_empty() { processors.max(1) } else { cores.len() }
}

fn memory_of(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| value_of(line, "MemTotal"));
    let kib = line.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The file system that a directory lies in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// What is mounted there: a device, a server's export, a file system's name.
    pub source: String,
    /// The mount point.
    pub mount_point: String,
    /// The type of the file system.
    pub kind: String,
    /// Mount options.
    pub options: String,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Space that an unprivileged user may still fill, in bytes.
    pub free_bytes: u64,
}

impl Target {
    /// Describes the mount below `directory`.
    pub fn of(directory: &Path) -> Result<Target> {
        let path =
            directory.canonicalize().map_err(|error| BenchError::path("find", directory, error))?;
        let space = rustix::fs::statvfs(&path)
            .map_err(|error| BenchError::path("ask the free space of", &path, error))?;
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let (source, mount_point, kind, options) = mount_of(&mounts, &path);
        Ok(Target {
            source,
            mount_point,
            kind,
            options,
            total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        })
    }
}

/// The mount that `path` lies in. Among the mount points that are a prefix of `path`, the longest
/// one wins, and the last of these.
fn mount_of(mounts: &str, path: &Path) -> (String, String, String, String) {
    let mut best: Option<Vec<String>> = None;
    for line in mounts.lines() {
        let fields: Vec<String> = line.split(' ').map(unescape).collect();
        if fields.len() < 4 || !path.starts_with(&fields[1]) {
            continue;
        }
        if best.as_ref().is_none_or(|held| held[1].len() <= fields[1].len()) {
            best = Some(fields);
        }
    }
    match best {
        Some(mut fields) => {
            fields.truncate(4);
            let [source, mount_point, kind, options] =
                <[String; 4]>::try_from(fields).expect("invariant: four fields were kept");
            (source, mount_point, kind, options)
        }
        None => ("unknown".into(), "/".into(), "unknown".into(), String::new()),
    }
}

/// The kernel writes blanks in mount points as `\040`.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// Asks the kernel to forget all clean pages, names and inodes. Needs root.
pub fn drop_system_caches() -> Result<()> {
    rustix::fs::sync();
    let path = Path::new("/proc/sys/vm/drop_caches");
    fs::write(path, "3").map_err(|error| {
        BenchError::system(
            "cannot drop the system's caches (needs root; `--cache file` does not)",
            error,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_divided_as_proc_stat_says() {
        let before = parse_stat("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n");
        let after = parse_stat("cpu  120 10 60 850 60 5 5 0 0 0\n");
        let used = after.since(before);
        assert_eq!(used.user, 30.0 / 110.0);
        assert_eq!(used.system, 20.0 / 110.0);
        assert_eq!((used.idle, used.wait), (50.0 / 110.0, 10.0 / 110.0));
        assert_eq!(before.since(before), CpuUse::default());
        assert_eq!(parse_stat(""), CpuTimes::default());
    }

    #[test]
    fn cores_are_not_hardware_threads() {
        let one = |processor, socket, core| {
            format!("processor : {processor}\nphysical id : {socket}\ncore id : {core}\n\n")
        };
        let text = [one(0, 0, 0), one(1, 0, 1), one(2, 0, 0), one(3, 1, 0)].concat();
        assert_eq!(cores_of(&text), 3);
        assert_eq!(cores_of("processor : 0\nprocessor : 1\n"), 2);
        assert_eq!(memory_of("MemFree: 1 kB\nMemTotal:       2048 kB\n"), 2 << 20);
    }

    #[test]
    fn the_longest_mount_point_wins() {
        let mounts = "dev / ext4 rw 0 0\nsrv:/x /mnt/a\\040b nfs4 ro 0 0\nt /mnt tmpfs rw 0 0\n";
        let kind = |path: &str| mount_of(mounts, Path::new(path)).2;
        assert_eq!(kind("/mnt/a b/c"), "nfs4");
        assert_eq!(kind("/mnt/a"), "tmpfs");
        assert_eq!(kind("/mntx"), "ext4");
        assert_eq!(mount_of("", Path::new("/x")).2, "unknown");
    }
}
