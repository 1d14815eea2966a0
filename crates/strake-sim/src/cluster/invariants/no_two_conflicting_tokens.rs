//! Two mounts that may use what they hold hold nothing that excludes the other's (P1).

use crate::cluster::mount::Mount;
use std::sync::Arc;
use std::time::Duration;
use strake_env::simulation::{now, undisturbed};
use strake_proto::Ino;

/// A look that takes longer had to wait for a lock, so what it saw was not at one moment.
const MOMENT: Duration = Duration::from_micros(500);

/// Looks at what the mounts hold of these inodes now.
///
/// # Panics
/// If two exclude each other.
pub(crate) fn look(mounts: &[Arc<Mount>], inos: &[Ino]) {
    let begun = now();
    let held: Vec<_> = undisturbed(|| {
        let usable = mounts.iter().filter(|mount| mount.tokens().has_lease());
        let of_mount = |mount: &Arc<Mount>| {
            let modes = inos.iter().map(|ino| mount.tokens().held(*ino)).collect::<Vec<_>>();
            (mount.client(), modes)
        };
        usable.map(of_mount).collect()
    });
    let took = now().zip(begun).map(|(now, begun)| now.saturating_sub(begun));
    if took.is_none_or(|took| took > MOMENT) {
        return;
    }
    for (at, (one, of_one)) in held.iter().enumerate() {
        for (other, of_other) in &held[..at] {
            for (ino, pair) in inos.iter().zip(of_one.iter().zip(of_other)) {
                let (Some(mode), Some(against)) = pair else { continue };
                let agree = mode.agrees(*against);
                assert!(agree, "clients {one} and {other} hold {ino}: {mode:?} and {against:?}");
            }
        }
    }
}
