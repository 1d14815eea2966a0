//! The daemon's log. It has what an operator may have to act on, each message with its time, level
//! and part (`disks`, `metadata`, `fuse`…). `strake up` gives the daemon `DIR/strake.log` as its
//! standard error, so other text, such as that of a panic, is in the same file. A daemon that
//! systemd started also sends each message to the journal.
//!
//! Commands have no log. Their messages go to the terminal, through `output::tell`.

use crate::journal::Journal;
use crate::settings::Settings;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// Begins to log as the settings `log_level` and `log_format` say. Each process calls it once.
pub(crate) fn start(settings: &Settings) {
    let log = subscriber(settings, std::io::stderr, Journal::of_service());
    tracing::subscriber::set_global_default(log).expect("invariant: the log starts once");
}

fn subscriber<W>(
    settings: &Settings,
    writer: W,
    journal: Option<Journal>,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = match settings.get("log_level") {
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "debug" => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(writer);
    match settings.get("log_format") {
        "json" => Box::new(log.json().flatten_event(true).finish().with(journal)),
        _ => Box::new(log.finish().with(journal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;
    use strake_env::sync::Mutex;
    use tracing::{debug, info, warn};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines of the log after one message of each level.
    fn logged(values: &[&str]) -> Vec<String> {
        let mut settings = Settings::default();
        values.iter().for_each(|value| settings.set(value).expect("valid"));
        let lines = Lines::default();
        let writer = lines.clone();
        tracing::subscriber::with_default(
            subscriber(&settings, move || writer.clone(), None),
            || {
                debug!(target: "fuse", "lookup of inode {}", 1);
                info!(target: "disks", "d1 is back");
                warn!(target: "disks", "NSD missing: {}", "\"d2\"");
            },
        );
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).expect("text").lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_has_time_level_part_and_message() {
        let lines = logged(&[]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let (time, rest) = lines[1].split_once(' ').expect("a time");
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert_eq!(rest.trim_start(), "WARN disks: NSD missing: \"d2\"");
    }

    #[test]
    fn the_level_is_a_setting() {
        assert_eq!(logged(&["log_level=error"]).len(), 0);
        assert_eq!(logged(&["log_level=warn"]).len(), 1);
        assert_eq!(logged(&["log_level=debug"]).len(), 3);
    }

    #[test]
    fn each_line_of_a_json_log_is_an_object() {
        let lines = logged(&["log_format=json"]);
        let value: serde_json::Value = serde_json::from_str(&lines[1]).expect("JSON");
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["target"], "disks");
        assert_eq!(value["message"], "NSD missing: \"d2\"");
        assert!(value["timestamp"].is_string(), "{value}");
    }
}
