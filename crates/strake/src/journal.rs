//! The daemon's log in systemd's journal, too, where systemd started the daemon. `journalctl -u
//! UNIT` then shows it with its levels. `DIR/strake.log` has everything in any case.
//!
//! A message is one datagram to the journal's socket, a list of fields (systemd's "Native Journal
//! Protocol"). The journal finds out itself which unit the sender belongs to. It must not hold up
//! the daemon, so a message that the socket does not take at once is left out.

use std::fmt::{Debug, Write};
use std::path::Path;
use strake_env::net::UnixDatagram;
use tracing::field::{Field, Visit};
use tracing::subscriber::Subscriber;
use tracing::{Event, Level};
use tracing_subscriber::layer::{Context, Layer};

/// Where the journal takes messages.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Sends each event to the journal.
pub(crate) struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// The journal that systemd connected this process with. `None` if there is none.
    pub(crate) fn of_service() -> Option<Journal> {
        // systemd sets this variable for processes whose output goes to the journal.
        std::env::var_os("JOURNAL_STREAM")?;
        Journal::at(Path::new(SOCKET)).ok()
    }

    fn at(path: &Path) -> std::io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Journal { socket })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(format!("{}: ", event.metadata().target()));
        event.record(&mut text);
        let fields = [
            ("PRIORITY", priority(*event.metadata().level())),
            ("SYSLOG_IDENTIFIER", "strake"),
            ("STRAKE_PART", event.metadata().target()),
            ("MESSAGE", &text.0),
        ];
        // A full socket or a journal that is not there any more: the file has the message.
        let _ = self.socket.send(&datagram(&fields));
    }
}

/// The levels of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// `NAME=VALUE` and the end of a line. A value of several lines has its length before it instead.
fn datagram(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.extend(name.as_bytes());
        if value.contains('\n') {
            bytes.push(b'\n');
            bytes.extend((value.len() as u64).to_le_bytes());
        } else {
            bytes.push(b'=');
        }
        bytes.extend(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// The text of an event, and its other fields behind it.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{debug, error, info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn messages_arrive_with_level_and_part_and_a_full_socket_holds_up_nobody() {
        let path = std::env::temp_dir().join(format!("strake-journal-{}", std::process::id()));
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        let log = tracing_subscriber::registry().with(journal);
        tracing::subscriber::with_default(log, || {
            error!(target: "daemon", "it failed");
            warn!(target: "disks", "NSD missing: {}", "d2");
            info!(target: "disks", "two\nlines");
            debug!(target: "fuse", inode = 7, "lookup");
        });
        let mut memory = [0; 500];
        let mut heard = || {
            let length = listener.recv(&mut memory).unwrap();
            String::from_utf8_lossy(&memory[..length]).into_owned()
        };
        let same = "SYSLOG_IDENTIFIER=strake\nSTRAKE_PART=";
        assert_eq!(heard(), format!("PRIORITY=3\n{same}daemon\nMESSAGE=daemon: it failed\n"));
        assert_eq!(heard(), format!("PRIORITY=4\n{same}disks\nMESSAGE=disks: NSD missing: d2\n"));
        let length = "\u{10}\0\0\0\0\0\0\0";
        let lines = format!("PRIORITY=6\n{same}disks\nMESSAGE\n{length}disks: two\nlines\n");
        assert_eq!(heard(), lines);
        assert_eq!(heard(), format!("PRIORITY=7\n{same}fuse\nMESSAGE=fuse: lookup inode=7\n"));

        // Nobody reads: far more than a socket takes.
        let journal = Journal::at(&path).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            for number in 0..10_000 {
                info!(target: "disks", "message {number}");
            }
        });
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(Journal::at(&path).is_err(), "no journal is there");
    }
}
