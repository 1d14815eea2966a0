//! Whether the parts of a tier fit together: slots, ports, cables, what a RAID controller can do.
//!
//! What cannot be built is an error of the design, never a figure.

use crate::design::{Clients, Servers, Storage};
use crate::error::PlanError;
use crate::library::{AdapterKind, Parity};

/// A RAID controller computes at most this many parity strips: RAID 6.
const RAID_PARITY_MAX: u64 = 2;

type Wrong<'a> = &'a dyn Fn(String) -> PlanError;

/// Storage alone.
pub(crate) fn storage(storage: &Storage, wrong: Wrong) -> Result<(), PlanError> {
    if storage.parity != Parity::Controller {
        return Ok(());
    }
    let code = storage.code;
    let pairs = code.redundant == 0 || code.redundant == code.data;
    if code.mirrored && !pairs {
        return Err(wrong(format!(
            "RAID controllers mirror in pairs; {} needs parity = \"server\" or \"client\"",
            code.name
        )));
    }
    if !code.mirrored && code.redundant > RAID_PARITY_MAX {
        return Err(wrong(format!(
            "RAID controllers compute one or two parity strips; {} needs parity = \"server\" or \
             \"client\"",
            code.name
        )));
    }
    if storage.spares > 0 {
        return Err(wrong(
            "spares are spare space of declustered codes; behind RAID controllers leave disks out \
             of the arrays with disks_per_tray, and set spares = 0"
                .into(),
        ));
    }
    Ok(())
}

/// Servers before that storage.
pub(crate) fn servers(storage: &Storage, servers: &Servers, wrong: Wrong) -> Result<(), PlanError> {
    let (enclosure, model) = (storage.enclosure, servers.model);
    if let Some(each) = &enclosure.servers_each {
        let brings = each.value * storage.per_block;
        if servers.per_block != brings {
            return Err(wrong(format!(
                "{} x {} bring {brings} servers; set servers.per_block = {brings}",
                storage.per_block, enclosure.name
            )));
        }
    }
    if enclosure.host_ports.value > 0 {
        let kind = enclosure.host_port_kind.unwrap_or(AdapterKind::Sas);
        let Some(hba) = servers.hba else {
            return Err(wrong(format!(
                "{} is cabled to its servers; give them a storage adapter with hba = \"…\"",
                enclosure.name
            )));
        };
        if hba.kind != kind {
            return Err(wrong(format!(
                "{} has {kind:?} ports and {} is for {:?}; choose an hba of the same kind",
                enclosure.name, hba.name, hba.kind
            )));
        }
    }
    // RAID adapters inside the servers take slots as well.
    let inside = match enclosure.inside_server() && storage.parity == Parity::Controller {
        true => storage.per_block.div_ceil(servers.per_block),
        false => 0,
    };
    let hbas = servers.hba.map_or(0, |_| servers.hba_per_server);
    let lans = servers.lan.map_or(0, |_| servers.lan_per_server);
    slots(model, &[("network", lans), ("storage", hbas), ("RAID", inside)], wrong)
}

/// Clients.
pub(crate) fn clients(clients: &Clients) -> Result<(), PlanError> {
    let lans = clients.lan.map_or(0, |_| clients.lan_per_client);
    slots(clients.model, &[("network", lans)], &PlanError::Usage)
}

fn slots(
    model: &crate::library::Server,
    adapters: &[(&str, u64)],
    wrong: Wrong,
) -> Result<(), PlanError> {
    let Some(most) = &model.adapters_max else { return Ok(()) };
    let all: u64 = adapters.iter().map(|(_, count)| count).sum();
    if all <= most.value {
        return Ok(());
    }
    let filled = adapters.iter().filter(|(_, count)| *count > 0);
    let what: Vec<String> = filled.map(|(kind, count)| format!("{count} {kind}")).collect();
    Err(wrong(format!(
        "{} takes at most {} adapters, not {all} ({})",
        model.name,
        most.value,
        what.join(", ")
    )))
}
