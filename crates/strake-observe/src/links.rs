//! How the network to other nodes is, for listings and for the recent past: what
//! [`strake_env::links`] counts.

use crate::slow::time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use strake_env::links::PeerView;
use strake_proto::ByteCount;

/// The network loses packets if so many were sent again,
const AGAIN_MIN: u64 = 20;
/// and one in so many of all.
const AGAIN_PARTS: u64 = 50;
/// The network is slow if no ping came back sooner.
const TRIP_EXPECTED: Duration = Duration::from_millis(10);
/// And if so many came back.
const TRIPS_MIN: u64 = 3;

/// True if so many packets were sent again that the network must lose some.
pub(crate) fn is_many(again: u64, packets: u64) -> bool {
    again >= AGAIN_MIN && again * AGAIN_PARTS >= packets
}

/// How the network to one node is. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkRow {
    /// The node.
    pub node: String,
    /// The connections with it that are there.
    pub connections: u64,
    /// Pings sent.
    pub pings: u64,
    /// Pings that were answered.
    pub answered: u64,
    /// The shortest round trip of a ping ever.
    pub smallest_ns: Option<u64>,
    /// The median of the last 64.
    pub median_ns: Option<u64>,
    /// The last one.
    pub last_ns: Option<u64>,
    /// How long nothing has come. It stands still while there is no connection.
    pub silence_ns: u64,
    /// All silences of three seconds or more since the start.
    pub silent_ns: u64,
    /// Bytes sent and received, with what the protocols add.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// Bytes that wait in the kernel to be sent.
    pub queued_bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets that the kernel sent again, because they were lost or their acknowledgement was.
    pub packets_again: u64,
    /// The same of what the node has sent to this one.
    #[serde(default)]
    pub their_packets: u64,
    /// See `their_packets`.
    #[serde(default)]
    pub their_packets_again: u64,
}

impl From<PeerView> for LinkRow {
    fn from(view: PeerView) -> LinkRow {
        let figures = view.figures;
        LinkRow {
            node: view.name,
            connections: view.connections as u64,
            pings: view.pings,
            answered: view.answered,
            smallest_ns: view.smallest_ns,
            median_ns: view.median_ns,
            last_ns: view.last_ns,
            silence_ns: view.silence_ns,
            silent_ns: view.silent_ns,
            sent_bytes: figures.sent,
            received_bytes: figures.received,
            queued_bytes: figures.unsent,
            packets: figures.packets,
            packets_again: figures.sent_again,
            their_packets: view.theirs.0,
            their_packets_again: view.theirs.1,
        }
    }
}

/// The events on the way to one node in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSums {
    /// Pings that were answered, and how long all of them took, in nanoseconds.
    pub answered: u64,
    /// See `answered`.
    pub trips_ns: u64,
    /// Silences of three seconds or more, in nanoseconds.
    pub silent_ns: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets sent again.
    pub packets_again: u64,
    /// The same of what the node sent to this one.
    pub their_packets: u64,
    /// See `their_packets`.
    pub their_packets_again: u64,
    /// The shortest of the last round trips, in nanoseconds.
    pub quickest_ns: Option<u64>,
}

impl LinkSums {
    /// The sums until now.
    pub(crate) fn of(view: &PeerView) -> LinkSums {
        LinkSums {
            answered: view.answered,
            trips_ns: view.trips_ns,
            silent_ns: view.silent_ns,
            packets: view.figures.packets,
            packets_again: view.figures.sent_again,
            their_packets: view.theirs.0,
            their_packets_again: view.theirs.1,
            quickest_ns: view.quickest_ns,
        }
    }

    /// The events since `then`.
    pub(crate) fn since(self, then: LinkSums) -> LinkSums {
        LinkSums {
            answered: self.answered.saturating_sub(then.answered),
            trips_ns: self.trips_ns.saturating_sub(then.trips_ns),
            silent_ns: self.silent_ns.saturating_sub(then.silent_ns),
            packets: self.packets.saturating_sub(then.packets),
            packets_again: self.packets_again.saturating_sub(then.packets_again),
            their_packets: self.their_packets.saturating_sub(then.their_packets),
            their_packets_again: self.their_packets_again.saturating_sub(then.their_packets_again),
            quickest_ns: self.quickest_ns,
        }
    }

    /// Adds those of another time.
    pub(crate) fn add(&mut self, more: LinkSums) {
        self.answered += more.answered;
        self.trips_ns += more.trips_ns;
        self.silent_ns += more.silent_ns;
        self.packets += more.packets;
        self.packets_again += more.packets_again;
        self.their_packets += more.their_packets;
        self.their_packets_again += more.their_packets_again;
        self.quickest_ns = match (self.quickest_ns, more.quickest_ns) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// True if packets are lost on the way there, or on the way back.
    pub fn is_lossy(&self) -> bool {
        is_many(self.packets_again, self.packets)
            || is_many(self.their_packets_again, self.their_packets)
    }

    /// True if no ping came back soon.
    pub fn is_slow(&self) -> bool {
        let expected = TRIP_EXPECTED.as_nanos();
        self.answered >= TRIPS_MIN && self.quickest_ns.is_some_and(|it| u128::from(it) >= expected)
    }

    /// The mean round trip.
    pub fn mean_ns(&self) -> Option<u64> {
        self.trips_ns.checked_div(self.answered)
    }
}

/// Prints a row for each node.
///
/// # Errors
/// Those of `out`.
pub fn print_links(out: &mut dyn fmt::Write, rows: &[LinkRow]) -> fmt::Result {
    if rows.is_empty() {
        return writeln!(out, "no connections with other nodes");
    }
    let heads = [
        "node", "links", "smallest", "median", "last", "silent", "sent", "received", "queued",
        "again", "by it",
    ];
    let mut lines = vec![heads.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 11] = std::array::from_fn(width);
    for line in &lines {
        write!(out, "{:<1$}", line[0], widths[0])?;
        for (cell, width) in line.iter().zip(widths).skip(1) {
            write!(out, "  {cell:>width$}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The columns that a listing shows of a row.
fn cells(row: &LinkRow) -> [String; 11] {
    let trip = |nanos: Option<u64>| nanos.map_or_else(|| "-".to_owned(), time);
    let bytes = |bytes: u64| ByteCount(bytes).to_string();
    let again = |again: u64, all: u64| format!("{:.2} %", again as f64 * 100.0 / all.max(1) as f64);
    [
        row.node.clone(),
        row.connections.to_string(),
        trip(row.smallest_ns),
        trip(row.median_ns),
        trip(row.last_ns),
        trip(Some(row.silence_ns).filter(|nanos| *nanos > 0)),
        bytes(row.sent_bytes),
        bytes(row.received_bytes),
        bytes(row.queued_bytes),
        again(row.packets_again, row.packets),
        again(row.their_packets_again, row.their_packets),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_env::links::tcp::TcpFigures;

    #[test]
    fn a_row_shows_round_trips_silence_and_what_was_sent_again() {
        let figures = TcpFigures {
            sent: 3 << 20,
            received: 5 << 10,
            packets: 2000,
            sent_again: 30,
            unsent: 4096,
            unacknowledged: 2,
        };
        let view = PeerView {
            name: "node2".to_owned(),
            connections: 3,
            pings: 12,
            answered: 10,
            trips_ns: 9_000_000,
            smallest_ns: Some(85_000),
            median_ns: Some(140_000),
            last_ns: Some(12_400_000),
            quickest_ns: Some(100_000),
            silence_ns: 2_000_000_000,
            silent_ns: 0,
            theirs: (400, 4),
            figures,
        };
        let alone = PeerView { name: "n3".to_owned(), ..PeerView::default() };
        let mut text = String::new();
        print_links(&mut text, &[view.into(), alone.into()]).expect("prints");
        let wanted = "\
node   links  smallest  median     last  silent   sent  received  queued   again   by it
node2      3   85.0 µs  140 µs  12.4 ms  2.00 s  3 MiB     5 KiB   4 KiB  1.50 %  1.00 %
n3         0         -       -        -       -    0 B       0 B     0 B  0.00 %  0.00 %
";
        assert_eq!(text, wanted);
    }
}
