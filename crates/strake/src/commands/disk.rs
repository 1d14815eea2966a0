//! `strake nsd list` and `strake disk list`: the disks by identity, and by state.

use crate::commands::fs::{Target, yes};
use crate::output::{self, Table};
use crate::show::{availability_name, status_name};
use clap::Subcommand;
use strake_proto::Result;

/// NSDs: which disks belong to which file system, and who serves them.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake nsd list
  strake nsd list --json")]
pub(crate) enum NsdCommand {
    /// File system, name and servers of each NSD.
    List(Target),
}

/// The disks of a file system and their state.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake disk list
  strake disk list --data /srv/strake --json")]
pub(crate) enum DiskCommand {
    /// Status and availability of each disk.
    List(Target),
}

/// Runs a `strake nsd` command.
pub(crate) fn run_nsd(command: &NsdCommand) -> Result<()> {
    let NsdCommand::List(target) = command;
    let show = target.show()?;
    if target.json {
        return output::print_json(&show.nsds);
    }
    let mut table = Table::new(&["file system", "disk name", "NSD id", "NSD servers", "device"]);
    for nsd in show.nsds {
        table.row(vec![
            show.name.clone(),
            nsd.name,
            nsd.id.to_string(),
            show.node.clone(),
            nsd.path,
        ]);
    }
    print!("{}", table.text());
    Ok(())
}

/// Runs a `strake disk` command.
pub(crate) fn run_disk(command: &DiskCommand) -> Result<()> {
    let DiskCommand::List(target) = command;
    let show = target.show()?;
    if target.json {
        return output::print_json(&show.nsds);
    }
    let mut table = Table::new(&[
        "disk name",
        "driver type",
        "sector size",
        "failure group",
        "holds metadata",
        "holds data",
        "status",
        "availability",
        "storage pool",
        "repaired",
    ]);
    for nsd in show.nsds {
        table.row(vec![
            nsd.name,
            "nsd".into(),
            "512".into(),
            nsd.failure_group.to_string(),
            yes(nsd.holds_metadata),
            yes(true),
            status_name(nsd.status).into(),
            availability_name(nsd.availability).into(),
            "system".into(),
            nsd.repaired_strips.to_string(),
        ]);
    }
    print!("{}", table.text());
    Ok(())
}
