//! The settings of a node. One table has their names, defaults, ranges and documentation.
//! `--set KEY=VALUE` and `strake.toml` are checked against it, and `strake config list` prints it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use strake_proto::{ByteCount, Error, ErrorKind, Result, parse_size};

/// The values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Bytes, as `64M`, from..=to.
    Size(u64, u64),
    /// A whole number, from..=to.
    Number(u64, u64),
    /// Time, as `500ms` or `30s`, from..=to.
    Time(Duration, Duration),
    /// One of these words.
    Word(&'static [&'static str]),
    /// An address with a port, as `127.0.0.1:7791`.
    Address,
}

/// One row of the table.
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    pub(crate) form: Form,
    pub(crate) meaning: &'static str,
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// All settings. They are read at `up`, and none changes while the daemon runs.
pub(crate) const TABLE: &[Setting] = &[
    Setting {
        name: "flushers",
        default: "auto",
        form: Form::Number(1, 64),
        meaning: "how many threads write behind, and how many read ahead; auto is half of \
                  worker_threads",
    },
    Setting {
        name: "fuse_io_uring",
        default: "off",
        form: Form::Word(&["off", "on"]),
        meaning: "take requests through io_uring where the kernel offers it",
    },
    Setting {
        name: "fuse_threads",
        default: "8",
        form: Form::Number(1, 256),
        meaning: "how many threads answer the kernel; with fuse_io_uring, how many for each \
                  processor",
    },
    Setting {
        name: "io_history_size",
        default: "4096",
        form: Form::Number(512, 65536),
        meaning: "how many I/Os `strake diag iohist` remembers",
    },
    Setting {
        name: "io_threads",
        default: "auto",
        form: Form::Number(0, 256),
        meaning: "how many threads move the strips of one block side by side; auto is \
                  worker_threads",
    },
    Setting {
        name: "log_format",
        default: "text",
        form: Form::Word(&["json", "text"]),
        meaning: "the form of each line of the log",
    },
    Setting {
        name: "log_level",
        default: "info",
        form: Form::Word(&["debug", "error", "info", "warn"]),
        meaning: "the least severe messages that the log takes; debug also logs requests that \
                  fail for a usual reason",
    },
    Setting {
        name: "metrics",
        default: "off",
        form: Form::Address,
        meaning: "where Prometheus gets metrics (http://ADDRESS/metrics), as 127.0.0.1:7791; \
                  whoever can connect may read them",
    },
    Setting {
        name: "nsd_io_limit",
        default: "30s",
        form: Form::Time(Duration::ZERO, seconds(3600)),
        meaning: "a disk that does not answer for this long is down; 0s disables the limit",
    },
    Setting {
        name: "pagepool",
        default: "auto",
        form: Form::Size(16 << 20, 1 << 44),
        meaning: "memory for file data; auto is a quarter of the machine's memory",
    },
    Setting {
        name: "patches",
        default: "auto",
        form: Form::Word(&["always", "auto", "off"]),
        meaning: "send only what changed of a block; auto: where that is little; always: also \
                  where it is much, for tests",
    },
    Setting {
        name: "prefetch_blocks",
        default: "4",
        form: Form::Number(0, 1024),
        meaning: "how many blocks a sequential reader is kept ahead",
    },
    Setting {
        name: "rpc",
        default: "direct",
        form: Form::Word(&["direct", "socket"]),
        meaning: "direct: everything in one process; socket: metadata and disks in a process of \
                  their own",
    },
    Setting {
        name: "standstill_max",
        default: "30s",
        form: Form::Time(seconds(1), seconds(3600)),
        meaning: "how long writers wait while nothing can be written, and in a cluster programs for \
                  disks that went, before they get EIO",
    },
    Setting {
        name: "stay_awake",
        default: "auto",
        form: Form::Word(&["auto", "off", "on"]),
        meaning: "keep processors from halting while requests come; auto: on virtual machines that \
                  halt at once",
    },
    Setting {
        name: "sync_interval",
        default: "30s",
        form: Form::Time(Duration::from_millis(100), seconds(3600)),
        meaning: "the longest time that written data stays in memory only",
    },
    Setting {
        name: "worker_threads",
        default: "8",
        form: Form::Number(1, 256),
        meaning: "how many threads write behind and read ahead",
    },
    Setting {
        name: "write_cache_threshold",
        default: "64K",
        form: Form::Size(0, 512 << 10),
        meaning: "an fsync of at most this much goes into the metadata's log first; 0: never",
    },
];

/// Values that differ from the defaults, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Settings {
    values: BTreeMap<String, String>,
}

impl Settings {
    /// Changes one setting; `text` has the form `KEY=VALUE`.
    ///
    /// # Errors
    /// `Invalid`; the message lists the settings, or the values that this one takes.
    pub(crate) fn set(&mut self, text: &str) -> Result<()> {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("'{text}': write a setting as KEY=VALUE"))
        })?;
        let setting = find(name)?;
        check(setting, value)?;
        self.values.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Checks all values, because `strake.toml` may have been edited.
    ///
    /// # Errors
    /// As [`Settings::set`].
    pub(crate) fn validate(&self) -> Result<()> {
        self.values.iter().try_for_each(|(name, value)| check(find(name)?, value))
    }

    /// The value of a setting, or its default if none was set.
    pub(crate) fn get(&self, name: &str) -> &str {
        let setting = find(name).expect("invariant: product code names settings of the table");
        self.values.get(name).map_or(setting.default, String::as_str)
    }

    /// Whether a value was set.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// A number or size that was validated; `None` for `auto`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        parse_size(self.get(name)).ok().map(|ByteCount(bytes)| bytes)
    }

    /// A time that was validated.
    pub(crate) fn time(&self, name: &str) -> Duration {
        parse_time(self.get(name)).expect("invariant: settings are validated when read")
    }
}

fn find(name: &str) -> Result<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
        let names = names.join(", ");
        Error::new(ErrorKind::Invalid, format!("no setting '{name}'; there are {names}"))
    })
}

fn check(setting: &Setting, value: &str) -> Result<()> {
    if value == setting.default {
        return Ok(());
    }
    let name = setting.name;
    let refuse = |wanted: String| {
        Err(Error::new(ErrorKind::Invalid, format!("{name}={value}: {name} takes {wanted}")))
    };
    match setting.form {
        Form::Size(from, to) => match parse_size(value) {
            Ok(ByteCount(bytes)) if (from..=to).contains(&bytes) => Ok(()),
            _ => refuse(format!("a size from {} to {}", ByteCount(from), ByteCount(to))),
        },
        Form::Number(from, to) => match value.parse::<u64>() {
            Ok(number) if (from..=to).contains(&number) => Ok(()),
            _ => refuse(format!("a whole number from {from} to {to}")),
        },
        Form::Time(from, to) => match parse_time(value) {
            Some(time) if (from..=to).contains(&time) => Ok(()),
            _ => refuse(format!("a time from {from:?} to {to:?}, such as 500ms or 30s")),
        },
        Form::Address => match value.parse::<strake_env::net::SocketAddr>() {
            Ok(address) if address.port() > 0 => Ok(()),
            _ => refuse("off, or an address with a port, such as 127.0.0.1:7791".to_owned()),
        },
        Form::Word(words) if words.contains(&value) => Ok(()),
        Form::Word(words) => refuse(words.join(" or ")),
    }
}

pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let count: u64 = digits.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(count)),
        "s" | "" => Some(Duration::from_secs(count)),
        "m" | "min" => Some(Duration::from_secs(count.checked_mul(60)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_default_is_readable() {
        let names: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        let settings = Settings::default();
        assert_eq!(settings.time("sync_interval"), seconds(30));
        assert_eq!(settings.number("fuse_threads"), Some(8));
        assert_eq!(settings.number("pagepool"), None);
    }

    #[test]
    fn settings_are_checked_and_refused_with_advice() {
        let mut settings = Settings::default();
        settings.set("pagepool=64M").expect("valid");
        settings.set("sync_interval=500ms").expect("valid");
        settings.set("metrics=[::1]:7791").expect("valid");
        settings.set("metrics=off").expect("valid");
        assert_eq!(settings.number("pagepool"), Some(64 << 20));
        for (bad, advice) in [
            ("pagepol=1G", "pagepool"),
            ("pagepool", "KEY=VALUE"),
            ("pagepool=1K", "16 MiB"),
            ("rpc=tcp", "direct or socket"),
            ("metrics=everywhere", "127.0.0.1:7791"),
            ("metrics=127.0.0.1", "127.0.0.1:7791"),
            ("metrics=127.0.0.1:0", "127.0.0.1:7791"),
            ("sync_interval=fast", "30s"),
            ("fuse_threads=0", "from 1"),
        ] {
            let error = settings.set(bad).expect_err(bad).to_string();
            assert!(error.contains(advice), "{bad}: {error}");
        }
        assert_eq!(settings.number("fuse_threads"), Some(8), "a refused value changes nothing");
    }
}
