//! The settings in force, and from what each value is derived: `strake config show --why`.
//!
//! The values are derived where they are used: the page pool in `assemble.rs`, threads in
//! `serve.rs`, the rest in the adapter. This file asks the same functions, so it says what is.

use super::serve::{Daemon, client_settings};
use crate::assemble;
use crate::settings::{Settings, TABLE};
use crate::show::InForce;
use strake_fuse::StayAwake;
use strake_proto::{ByteCount, Result};

/// The facts of the machine and the mount.
struct Facts {
    /// The file that values are set in.
    file: String,
    /// Bytes of the machine's memory.
    memory: u64,
    /// Bytes of the page pool.
    pool: u64,
    flushers: usize,
    io_threads: usize,
    /// Whether processors of this machine take long to wake.
    wakes_slowly: bool,
    /// Whether requests come through io_uring.
    has_rings: bool,
}

impl Daemon {
    /// All settings, by name.
    pub(super) fn settings_in_force(&self) -> Result<Vec<InForce>> {
        let config = self.config();
        let client = client_settings(&config)?;
        let facts = Facts {
            file: self.dir.config_path().display().to_string(),
            memory: assemble::memory_bytes()?,
            pool: client.page_pool.0,
            flushers: client.flushers,
            io_threads: client.io_threads,
            wakes_slowly: StayAwake::Auto.is_wanted(),
            has_rings: self.mount.has_rings(),
        };
        Ok(in_force(&config.settings, &facts))
    }
}

fn in_force(settings: &Settings, facts: &Facts) -> Vec<InForce> {
    let one = |name: &'static str, default: &str| {
        let value = settings.get(name);
        let is_auto = value == "auto";
        let (used, why) = match name {
            "pagepool" if is_auto => {
                let of =
                    format!("a quarter of the machine's {} of memory", ByteCount(facts.memory));
                (ByteCount(facts.pool).to_string(), of)
            }
            "flushers" if is_auto => {
                let workers = settings.get("worker_threads");
                (facts.flushers.to_string(), format!("half of worker_threads, which is {workers}"))
            }
            "io_threads" if is_auto => {
                (facts.io_threads.to_string(), "as many as worker_threads".to_owned())
            }
            "stay_awake" if is_auto && facts.wakes_slowly => {
                let why = "this is a virtual machine whose processors halt at once";
                ("on".to_owned(), why.to_owned())
            }
            "stay_awake" if is_auto => {
                let why = "this is no virtual machine whose processors halt at once";
                ("off".to_owned(), why.to_owned())
            }
            "patches" if is_auto => (value.to_owned(), "decided for each write".to_owned()),
            "fuse_io_uring" if value == "on" && !facts.has_rings => {
                let why = "it is on, but this kernel offers none, or other nodes may mount, too";
                ("off".to_owned(), why.to_owned())
            }
            _ if settings.is_set(name) => (value.to_owned(), format!("set in {}", facts.file)),
            _ => (value.to_owned(), "the default".to_owned()),
        };
        let set = settings.is_set(name).then(|| value.to_owned());
        InForce { name: name.to_owned(), set, default: default.to_owned(), used, why }
    };
    TABLE.iter().map(|setting| one(setting.name, setting.default)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_says_whether_it_is_set_or_from_what_it_is_derived() {
        let mut settings = Settings::default();
        for set in ["worker_threads=6", "fuse_io_uring=on", "sync_interval=5s"] {
            settings.set(set).expect("valid");
        }
        let facts = |has_rings| Facts {
            file: "/srv/strake.toml".to_owned(),
            memory: 8 << 30,
            pool: 2 << 30,
            flushers: 3,
            io_threads: 6,
            wakes_slowly: false,
            has_rings,
        };
        let all = in_force(&settings, &facts(false));
        assert_eq!(all.len(), TABLE.len());
        let of = |all: &[InForce], name: &str| {
            let found = all.iter().find(|it| it.name == name).expect("it is there");
            (found.used.clone(), found.why.clone())
        };
        for (name, used, why) in [
            ("pagepool", "2 GiB", "a quarter of the machine's 8 GiB of memory"),
            ("flushers", "3", "half of worker_threads, which is 6"),
            ("io_threads", "6", "as many as worker_threads"),
            ("worker_threads", "6", "set in /srv/strake.toml"),
            ("sync_interval", "5s", "set in /srv/strake.toml"),
            ("prefetch_blocks", "4", "the default"),
            ("stay_awake", "off", "this is no virtual machine whose processors halt at once"),
            (
                "fuse_io_uring",
                "off",
                "it is on, but this kernel offers none, or other nodes may mount, too",
            ),
        ] {
            assert_eq!(of(&all, name), (used.to_owned(), why.to_owned()));
        }
        let rings = in_force(&settings, &facts(true));
        assert_eq!(of(&rings, "fuse_io_uring"), ("on".into(), "set in /srv/strake.toml".into()));
    }
}
