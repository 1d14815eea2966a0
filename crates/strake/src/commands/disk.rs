//! `strake nsd list` and `strake disk list`: the disks by identity, and by state.

use crate::admin::{self, Request};
use crate::commands::fs::{Target, yes};
use crate::output;
use crate::registry;
use crate::show::{ShowNsd, availability_name, status_name};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use strake_proto::layout::NsdStatus;
use strake_proto::{ByteCount, Result};
use strake_report::Table;

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
  strake disk list --data /srv/strake --json
  strake disk start nsd3                       use it again at once, not at the next look
  strake disk suspend nsd3                     place no new files on it; reads go on
  strake disk resume nsd3                      and do so again
  strake disk replace nsd3 /mnt/new --rate 50M move what nsd3 holds to a new disk
  strake disk replace nsd3 /dev/sdf            onto a block device
  strake disk replace nsd3 --in-place          fill a disk that cannot be used anew where it is
  strake disk delete nsd3 --rate 50M           give what it holds, or held, to the other disks")]
pub(crate) enum DiskCommand {
    /// Status and availability of each disk.
    List(Target),
    /// Look for a disk that was away and bring it up to date.
    Start(Named),
    /// Place no new data on a disk; what is there is read.
    Suspend(Named),
    /// Place new data on it again.
    Resume(Named),
    /// Replace a disk by a new one while the file system is in use.
    ///
    /// What cannot be read from the old one is rebuilt from the others. Goes on in the background,
    /// after a restart too; `strake disk list` shows how far it is. The old disk is not used any
    /// more afterwards.
    Replace {
        #[command(flatten)]
        old: Named,
        /// The new disk: an empty or new directory, or a block device.
        #[arg(value_name = "NEW", required_unless_present = "in_place")]
        new: Option<PathBuf>,
        /// Make the new disk where the old one is, which cannot be used: what it holds is deleted
        /// and rebuilt from the others.
        #[arg(long, conflicts_with_all = ["new", "force"])]
        in_place: bool,
        /// Size of the new container [default: as the others].
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteCount>,
        /// Copy at most so much a second [default: as fast as it goes].
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteCount>,
        /// Use a device that holds something else, which is lost.
        #[arg(long)]
        force: bool,
    },
    /// Delete a disk that is lost, or is to go, without a new one in its place.
    ///
    /// Each strip of it gets a place on another disk: copied while the disk can be read, else
    /// rebuilt from the others. Goes on in the background, after a restart too; `strake disk list`
    /// shows how far it is, and the disk no more when it is done. Refused where the other disks are
    /// too few for the code, have too little space, or are not all up.
    Delete {
        #[command(flatten)]
        disk: Named,
        /// Move at most so much a second [default: as fast as it goes].
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteCount>,
    },
}

/// One disk of a file system.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The disk's name, as `strake disk list` shows it.
    #[arg(value_name = "DISK")]
    disk: String,
    #[command(flatten)]
    target: Target,
}

/// Runs a `strake nsd` command.
pub(crate) fn run_nsd(command: &NsdCommand) -> Result<()> {
    let NsdCommand::List(target) = command;
    let show = target.show()?;
    if target.json {
        return output::print_json(&show.nsds);
    }
    let mut table =
        Table::listing(&["file system", "disk name", "NSD id", "NSD servers", "device"]);
    for nsd in show.nsds {
        table.row(vec![
            show.name.clone(),
            nsd.name,
            nsd.id.to_string(),
            show.node.clone(),
            nsd.path,
        ]);
    }
    print!("{}", table.render());
    Ok(())
}

/// Runs a `strake disk` command.
pub(crate) fn run_disk(command: &DiskCommand) -> Result<()> {
    match command {
        DiskCommand::List(target) => list(target),
        DiskCommand::Start(named) => named.ask(&Request::DiskStart { disk: named.disk.clone() }),
        DiskCommand::Suspend(named) => {
            named.ask(&Request::DiskSuspend { disk: named.disk.clone(), suspended: true })
        }
        DiskCommand::Resume(named) => {
            named.ask(&Request::DiskSuspend { disk: named.disk.clone(), suspended: false })
        }
        DiskCommand::Delete { disk, rate } => disk.ask(&Request::DiskDelete {
            disk: disk.disk.clone(),
            rate: rate.map_or(0, |rate| rate.0),
        }),
        DiskCommand::Replace { old, new, in_place: _, size, rate, force } => {
            old.ask(&Request::DiskReplace {
                disk: old.disk.clone(),
                path: new.as_ref().map(std::path::absolute).transpose()?,
                size: size.map(|size| size.0),
                rate: rate.map_or(0, |rate| rate.0),
                force: *force,
            })
        }
    }
}

impl Named {
    /// Has the daemon do something with the disk, and prints its sentence.
    fn ask(&self, request: &Request) -> Result<()> {
        let dir = registry::find(self.target.data.as_deref())?;
        let value: serde_json::Value = admin::ask(&dir, request)?;
        if self.target.json {
            return output::print_json(&value);
        }
        println!("{}", value.get("message").and_then(|text| text.as_str()).unwrap_or("done"));
        Ok(())
    }
}

fn list(target: &Target) -> Result<()> {
    let show = target.show()?;
    if target.json {
        return output::print_json(&show.nsds);
    }
    let mut table = Table::listing(&[
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
        "remarks",
    ]);
    let warning = show.warning();
    for nsd in show.nsds {
        let remark = remarks(&nsd);
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
            remark,
        ]);
    }
    print!("{}", table.render());
    if let Some(warning) = warning {
        output::tell(&warning);
    }
    Ok(())
}

/// What else is to be said of a disk.
fn remarks(nsd: &ShowNsd) -> String {
    match (nsd.recovered_bytes, nsd.recovery_bytes) {
        (Some(_), Some(0)) => "being compared".to_owned(),
        (Some(done), Some(total)) => {
            let percent = u128::from(done) * 100 / u128::from(total);
            format!("{percent} % of {} compared", ByteCount(total))
        }
        _ if nsd.status == NsdStatus::BeingEmptied => "waits; the log says for what".to_owned(),
        _ => nsd.fault.clone().unwrap_or_else(|| damage(nsd)),
    }
}

/// What scrubs have found in a disk's own records.
fn damage(nsd: &ShowNsd) -> String {
    match (nsd.bad_pages, nsd.mended_pages) {
        (0, _) => String::new(),
        (bad, mended) => format!("{bad} pages of its records damaged, {mended} mended"),
    }
}
