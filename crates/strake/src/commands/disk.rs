//! `strake nsd` and `strake disk`: list the disks by identity or by state, and change how they are
//! used.

use crate::admin::{self, Request};
use crate::commands::cluster_fs;
use crate::commands::fs::{Target, or_dash, yes};
use crate::commands::node::NodeTarget;
use crate::output;
use crate::registry;
use crate::show::{ShowNsd, availability_name, status_name};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use strake_proto::layout::NsdStatus;
use strake_proto::{ByteCount, Result};
use strake_report::Table;

/// Make NSDs, and list them: to which file system each disk belongs, and which machine serves it.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake nsd list
  strake nsd list --json
  strake nsd create -F nsds.stanza      make the NSDs of a cluster that a file describes
  strake nsd delete d1 d2               NSDs that belong to no file system

A file describes NSDs in stanzas, or in lines device:servers::usage:failureGroup:name:pool
  %nsd: device=/dev/sdb servers=n1 nsd=d1 usage=dataAndMetadata failureGroup=1
  %nsd: device=/dev/disk/by-id/x servers=n1,n2   both reach it; n2 serves it when n1 is away
  %nsd: device=/srv/disk2 servers=n2 size=10G
  %nsd: device=d3 servers=n3 size=10G   a directory in the node's own directory")]
pub(crate) enum NsdCommand {
    /// List the file system, name and servers of each NSD.
    List {
        #[command(flatten)]
        target: Target,
        /// A node's directory: list the NSDs of its cluster.
        #[arg(long, value_name = "DIR", conflicts_with = "data")]
        dir: Option<PathBuf>,
    },
    /// Make the NSDs of a cluster that a file describes.
    ///
    /// NSDs of one node share a failure group unless the file says otherwise. What the devices hold
    /// is lost.
    Create {
        /// The file with stanzas or descriptors.
        #[arg(short = 'F', long, value_name = "FILE")]
        file: PathBuf,
        /// Use devices even if they hold something else. Their contents are lost.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        target: NodeTarget,
    },
    /// Delete NSDs of a cluster that belong to no file system.
    Delete {
        /// Their names.
        #[arg(value_name = "NSD", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        target: NodeTarget,
    },
}

/// List the disks of a file system, and change how they are used.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake disk list
  strake disk list --data /srv/strake --json
  strake disk start nsd3                       look for a disk that was away, and use it again
  strake disk suspend nsd3                     place no new files on it; it is still read
  strake disk resume nsd3                      place new files on it again
  strake disk replace nsd3 /mnt/new --rate 50M move what nsd3 holds to a new disk
  strake disk replace nsd3 /dev/sdf            the same, onto a block device
  strake disk replace nsd3 --in-place          rebuild a damaged disk where it is
  strake disk replace d3 e3                    in a cluster: fill the NSD e3 in place of a lost d3
  strake disk delete nsd3 --rate 50M           move what it holds, or held, to the other disks")]
pub(crate) enum DiskCommand {
    /// Show the status and availability of each disk.
    List(Target),
    /// Look for a disk that was away and bring it up to date.
    Start(Named),
    /// Place no new data on a disk. The data on it is still read.
    Suspend(Named),
    /// Place new data on a suspended disk again.
    Resume(Named),
    /// Replace a disk by a new one while the file system is in use.
    ///
    /// Data that cannot be read from the old disk is rebuilt from the others. The work goes on in
    /// the background, also after a restart. `strake disk list` shows how far it is. When the work
    /// is done, the old disk is not used any more.
    Replace {
        #[command(flatten)]
        old: Named,
        /// The new disk: an empty or new directory, or a block device.
        #[arg(value_name = "NEW", required_unless_present = "in_place")]
        new: Option<PathBuf>,
        /// Make the new disk in the place of the old one. The old one must be unusable: its
        /// contents are deleted and rebuilt from the other disks.
        #[arg(long, conflicts_with_all = ["new", "force"])]
        in_place: bool,
        /// Size of the new container [default: that of the largest one].
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteCount>,
        /// Copy at most this much per second [default: no limit].
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteCount>,
        /// Use the device even if it holds something else. Its contents are lost.
        #[arg(long)]
        force: bool,
    },
    /// Add disks to a file system in use.
    ///
    /// New files are placed on all disks from then on. Files that exist stay where they are. In a
    /// cluster, `strake nsd create` makes the NSDs first, and their names are given here.
    #[command(after_help = "Examples:\n  strake disk add /srv/disk5\n  strake disk add /dev/sdx \
                            /dev/sdy\n  strake disk add nsd7 nsd8        (in a cluster)")]
    Add {
        /// The new disks: empty or new directories, or block devices; in a cluster, NSDs that
        /// belong to no file system.
        #[arg(value_name = "NEW", required = true)]
        new: Vec<PathBuf>,
        /// Size of each new container [default: that of the largest one].
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteCount>,
        /// Use a device even if it holds something else. Its contents are lost.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Delete a disk without a new one in its place.
    ///
    /// Each of its strips gets a place on another disk. The strips are copied while the disk can
    /// be read, and rebuilt from the others if it cannot. The work goes on in the background, also
    /// after a restart. `strake disk list` shows how far it is; when the work is done, the disk is
    /// off the list. The command is refused if the other disks are too few for the code, have too
    /// little space, or are not all up.
    Delete {
        #[command(flatten)]
        disk: Named,
        /// Move at most this much per second [default: no limit].
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
    let (target, dir) = match command {
        NsdCommand::List { target, dir } => (target, dir),
        NsdCommand::Create { file, force, target } => {
            return cluster_fs::create_nsds(file, *force, target);
        }
        NsdCommand::Delete { names, target } => return cluster_fs::delete_nsds(names, target),
    };
    if let Some(node) = cluster_fs::node_meant(dir, target.data.as_deref())? {
        return cluster_fs::list_nsds(&NodeTarget { dir: Some(node), json: target.json });
    }
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
        DiskCommand::Add { new, size, force, target } => {
            let given = |path: &PathBuf| {
                Ok((std::path::absolute(path)?, path.to_string_lossy().into_owned()))
            };
            let disks = new.iter().map(given).collect::<Result<_>>()?;
            let (size, force) = (size.map(|size| size.0), *force);
            target.ask(&Request::DiskAdd { disks, size, force })
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
                given: new.as_ref().map(|new| new.to_string_lossy().into_owned()),
            })
        }
    }
}

impl Named {
    fn ask(&self, request: &Request) -> Result<()> {
        self.target.ask(request)
    }
}

impl Target {
    /// Sends a request about disks to the daemon, and prints the sentence that it answers.
    fn ask(&self, request: &Request) -> Result<()> {
        let dir = registry::find(self.data.as_deref())?;
        let value: serde_json::Value = admin::ask(&dir, request)?;
        if self.json {
            return output::print_json(&value);
        }
        println!("{}", value.get("message").and_then(|text| text.as_str()).unwrap_or("done"));
        Ok(())
    }
}

/// The columns that every listing of disks begins with.
pub(super) const HEADS: [&str; 8] = [
    "disk name",
    "driver type",
    "sector size",
    "failure group",
    "holds metadata",
    "holds data",
    "status",
    "availability",
];

fn list(target: &Target) -> Result<()> {
    let show = target.show()?;
    if target.json {
        return output::print_json(&show.nsds);
    }
    let own = ["storage pool", "repaired", "remarks"];
    let mut table = Table::listing(&[&HEADS[..], &own].concat());
    let warning = show.warning();
    for nsd in show.nsds {
        let remark = remarks(&nsd);
        table.row(vec![
            nsd.name,
            "nsd".into(),
            "512".into(),
            nsd.failure_group.to_string(),
            or_dash(nsd.holds_metadata.map(yes)),
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

/// The remarks column: progress of a job, a fault, or damage.
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

/// The damage that scrubs have found in a disk's own records.
fn damage(nsd: &ShowNsd) -> String {
    match (nsd.bad_pages, nsd.mended_pages) {
        (0, _) => String::new(),
        (bad, mended) => format!("{bad} pages of its records damaged, {mended} mended"),
    }
}
