//! The settings of the client. An administrator's change applies from the next start.

use std::str::FromStr;
use std::time::Duration;
use strake_proto::{ByteCount, Error, ErrorKind, Result, parse_size};

/// When a block is sent as a patch: its changed units alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patches {
    /// Where little has changed.
    #[default]
    Auto,
    /// Wherever that is possible, however much has changed.
    Always,
    /// Never.
    Off,
}

/// Settings of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `pagepool`: memory for file data, clean and dirty. At least 8 blocks are always allowed.
    pub page_pool: ByteCount,
    /// `sync_interval`: written data that no program has synced is on disk after this time.
    pub sync_interval: Duration,
    /// `write_cache_threshold`: if an fsync finds at most so many dirty bytes in a file, they go
    /// into the metadata's log instead of into whole stripes. 0 disables this.
    pub write_cache_threshold: ByteCount,
    /// `flushers`: the number of threads that write behind, and of those that read ahead.
    pub flushers: usize,
    /// `io_threads`: the number of threads that move the strips of a block side by side.
    pub io_threads: usize,
    /// `standstill_max`: how long writers and readers wait for memory while no data at all can be
    /// written. After this time a writer gets an error, and a reader exceeds the page pool's
    /// budget. In a cluster also how long programs wait for disks that went.
    pub standstill_max: Duration,
    /// `prefetch_blocks`: how many blocks a sequential reader is kept ahead.
    pub prefetch_blocks: u64,
    /// `patches`: whether blocks are sent as patches.
    pub patches: Patches,
    /// Whether the process does nothing else, so that its whole memory is limited: see the head of
    /// memory/page_pool.rs.
    pub own_process: bool,
}

impl FromStr for Patches {
    type Err = Error;

    fn from_str(word: &str) -> Result<Patches> {
        match word {
            "auto" => Ok(Patches::Auto),
            "always" => Ok(Patches::Always),
            "off" => Ok(Patches::Off),
            _ => {
                let detail = format!("patches is auto, always or off, not '{word}'");
                Err(Error::new(ErrorKind::Invalid, detail))
            }
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            page_pool: ByteCount::gib(1),
            sync_interval: Duration::from_secs(30),
            standstill_max: Duration::from_secs(30),
            write_cache_threshold: ByteCount::kib(64),
            flushers: 4,
            io_threads: 8,
            prefetch_blocks: 4,
            patches: Patches::Auto,
            own_process: false,
        }
    }
}

impl Settings {
    /// The smallest values that work, for tests in which everything is to happen often.
    pub fn test_min() -> Settings {
        Settings {
            page_pool: ByteCount::mib(2),
            sync_interval: Duration::from_secs(1),
            standstill_max: Duration::from_secs(3),
            write_cache_threshold: ByteCount::kib(64),
            flushers: 2,
            io_threads: 2,
            prefetch_blocks: 2,
            patches: Patches::Auto,
            own_process: false,
        }
    }

    /// Sets `name` to `value`. Returns false if the client has no such setting.
    ///
    /// # Errors
    /// `Invalid` if it has, and the value makes no sense.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "pagepool" => self.page_pool = parse_size(value)?,
            "sync_interval" => self.sync_interval = Duration::from_secs(number(name, value)?),
            "standstill_max" => self.standstill_max = Duration::from_secs(number(name, value)?),
            "write_cache_threshold" => self.write_cache_threshold = parse_size(value)?,
            "flushers" => self.flushers = number(name, value)?.clamp(1, 64) as usize,
            "io_threads" => self.io_threads = number(name, value)?.min(256) as usize,
            "prefetch_blocks" => self.prefetch_blocks = number(name, value)?.min(1024),
            "patches" => self.patches = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn number(name: &str, value: &str) -> Result<u64> {
    let text = value.trim().trim_end_matches('s');
    text.parse().map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("{name} takes a whole number, not '{value}'"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_name_and_refused_with_advice() {
        let mut settings = Settings::default();
        assert!(settings.set("pagepool", "64M").expect("a size"));
        assert_eq!(settings.page_pool, ByteCount::mib(64));
        assert!(settings.set("patches", "off").expect("a word"));
        assert_eq!(settings.patches, Patches::Off);
        assert!(settings.set("patches", "some").is_err());
        assert!(settings.set("sync_interval", "5s").expect("seconds"));
        assert_eq!(settings.sync_interval, Duration::from_secs(5));
        assert!(!settings.set("rpc", "socket").expect("not ours"));
        assert!(settings.set("flushers", "many").expect_err("no number").detail().contains("many"));
    }
}
