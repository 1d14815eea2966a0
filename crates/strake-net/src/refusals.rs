//! What the log says of peers that are refused: each peer once a minute. A peer is a node, or the
//! machine of somebody who has proven nothing. A peer that tries again and again fills no disk, and
//! hides no other peer.

use crate::greetings::Origin;
use crate::handshake::Refusal;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use strake_env::sync::Mutex;
use strake_env::{Clock, RealClock};
use strake_proto::ErrorKind;

/// Between two lines about one peer.
const PAUSE: Duration = Duration::from_secs(60);
/// Peers that are remembered. Beyond that the one that was named longest ago is forgotten.
const PEERS_MAX: usize = 1024;

/// Counts refusals and writes them to the log.
#[derive(Default)]
pub(crate) struct Refusals {
    count: AtomicU64,
    named: Mutex<Named>,
}

impl Refusals {
    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Counts one that the log need not mention.
    pub(crate) fn count_silently(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    /// `server` refused a peer that came from `origin`.
    pub(crate) fn note(&self, origin: Origin, server: &str, refusal: &Refusal) {
        self.count_silently();
        let Refusal { node, error } = refusal;
        // It hung up, or the service is not there now. Neither needs anybody's attention.
        if error.kind() == ErrorKind::Unreachable {
            return;
        }
        let peer = match (node, origin) {
            (Some(node), _) => format!("node {node}"),
            (None, Some(address)) => address.to_string(),
            (None, None) => "a process of this machine".to_owned(),
        };
        let Some(before) = self.named.lock().name(&peer, RealClock.monotonic()) else { return };
        let before = match before {
            0 => String::new(),
            count => format!(" ({count} more since the last such line)"),
        };
        tracing::warn!("{server} refused {peer}: {error}{before}");
    }
}

/// When each peer was named last. Pure.
#[derive(Default)]
struct Named {
    /// The time, and how many refusals went unnamed since.
    peers: BTreeMap<String, (Duration, u64)>,
}

impl Named {
    /// Whether to name a peer now; then how many of its refusals went unnamed before.
    fn name(&mut self, peer: &str, now: Duration) -> Option<u64> {
        if let Some((named, unnamed)) = self.peers.get_mut(peer) {
            if now < *named + PAUSE {
                *unnamed += 1;
                return None;
            }
            let before = std::mem::take(unnamed);
            *named = now;
            return Some(before);
        }
        if self.peers.len() >= PEERS_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, (named, _))| *named);
            let oldest = oldest.map(|(peer, _)| peer.clone());
            if let Some(oldest) = oldest {
                self.peers.remove(&oldest);
            }
        }
        self.peers.insert(peer.to_owned(), (now, 0));
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_named_once_a_minute_and_the_others_too() {
        let mut named = Named::default();
        let second = Duration::from_secs;
        assert_eq!(named.name("a", second(0)), Some(0));
        assert_eq!(named.name("b", second(1)), Some(0));
        for now in 2..60 {
            assert_eq!(named.name("a", second(now)), None);
        }
        assert_eq!(named.name("a", second(60)), Some(58));
        assert_eq!(named.name("b", second(61)), Some(0));
        assert_eq!(named.name("a", second(62)), None);
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut named = Named::default();
        for peer in 0..5000 {
            let now = Duration::from_millis(peer);
            assert_eq!(named.name(&peer.to_string(), now), Some(0));
            assert!(named.peers.len() <= PEERS_MAX);
        }
    }
}
