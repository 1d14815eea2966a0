//! After all is mended, every strip of every file is there and decodes, on every NSD; the metadata
//! counts what is stored, and every NSD's own check finds nothing (P3, P4).

use crate::cluster::place::{NODES, nsd};
use crate::cluster::world::World;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::ErrorKind;
use strake_proto::meta::{MetaQuery, MetaReply};
use strake_proto::nsd::{NsdContext, NsdReply, NsdRequest};

/// The crew reads all NSDs within that time, and how often is looked.
const READABLE_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(1);

/// Runs the product's checks, as `fs check` does. Nobody writes meanwhile.
///
/// # Errors
/// What they find.
pub(crate) fn check(world: &World) -> Result<(), String> {
    let mut faults = Vec::new();
    let leaders: Vec<_> = world.nodes().iter().filter_map(|node| node.crew()).collect();
    let [crew] = &leaders[..] else {
        return Err(format!("{} nodes lead", leaders.len()));
    };
    let end = RealClock.monotonic() + READABLE_WITHIN;
    loop {
        match crew.manage(|manager| manager.check_strips()) {
            // The crew reads an NSD again soon after it has come back.
            Ok(check) if !check.notes.is_empty() && RealClock.monotonic() < end => {
                RealClock.sleep(LOOK);
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Io && RealClock.monotonic() < end => {
                RealClock.sleep(LOOK);
                continue;
            }
            Ok(check) => faults.extend(check.faults.into_iter().chain(check.notes)),
            Err(error) => faults.push(format!("the strips cannot be checked: {error}")),
        }
        break;
    }
    let checked = world.on_mount(0, |living| living.mount.meta().query(&MetaQuery::Check));
    match checked {
        Ok(MetaReply::Checked(reply)) => faults.extend(reply.faults),
        other => faults.push(format!("the metadata cannot be checked: {other:?}")),
    }
    for nsd in NODES.map(nsd) {
        let request = NsdRequest::Check { data: true };
        let context = NsdContext { client: crew.client(), ..NsdContext::default() };
        let port = crew.port(nsd).expect("the crew knows all");
        match port.call(context, &request, &[], &mut []) {
            Ok(NsdReply::Checked(reply)) => faults.extend(reply.faults),
            other => faults.push(format!("NSD {nsd} cannot be checked: {other:?}")),
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n  ")) }
}
