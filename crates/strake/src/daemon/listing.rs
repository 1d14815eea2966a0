//! Answers what listings ask: everything that `fs`, `nsd` and `disk` list.

use super::figures::{Listed, Seen, Sources};
use super::serve::Daemon;
use crate::assemble;
use crate::commands::diag::node_name;
use crate::settings;
use crate::show::{Show, ShowNsd};
use std::path::PathBuf;
use std::sync::Arc;
use strake_array::NsdView;
use strake_client::Vfs;
use strake_manager::Replacement;
use strake_proto::Result;
use strake_proto::layout::{NsdAvailability, NsdStatus};

impl Daemon {
    /// Who has the figures of listings.
    pub(super) fn sources(&self) -> Sources {
        let (vfs, config, dir) = (Arc::clone(&self.life().vfs), self.config(), self.dir.clone());
        let cluster = self.life().backend.cluster();
        Sources {
            meta: Arc::clone(&self.life().meta),
            space: Arc::new(move || vfs.statfs()),
            holders: Arc::new(move || match &cluster {
                Some(cluster) => cluster.metadata_holders(),
                None => Ok(assemble::metadata_holders(&dir, &config)),
            }),
            context: self.nsd_context(),
        }
    }

    /// The file system, its settings and disks.
    pub(super) fn show(&self) -> Result<Show> {
        let views = self.life().array.nsds();
        let listed: Vec<Listed> = views.iter().map(|view| self.listed(view)).collect();
        let mut seen = self.figures.look(&self.sources(), &listed)?;
        let (configuration, config) = (Arc::clone(&seen.configuration), self.config());
        let effective = settings::TABLE
            .iter()
            .map(|setting| (setting.name.to_owned(), config.settings.get(setting.name).to_owned()));
        Ok(Show {
            name: configuration.name.clone(),
            cluster: configuration.cluster.to_string(),
            code: configuration.code.to_string(),
            block_size: configuration.block_size,
            created_seconds: configuration.created.seconds,
            mount: config.mount.to_string_lossy().into_owned(),
            data: self.dir.root().to_string_lossy().into_owned(),
            pid: std::process::id(),
            node: node_name(),
            format_version: strake_store::superblock::FORMAT_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            usable_bytes: seen.space.map(|space| space.total),
            free_bytes: seen.space.map(|space| space.available),
            inodes: seen.space.map(|space| space.inodes_used),
            settings: effective.collect(),
            late: std::mem::take(&mut seen.late),
            nsds: views.iter().map(|view| self.show_nsd(view, &seen)).collect(),
        })
    }

    fn listed(&self, view: &NsdView) -> Listed {
        let away = [NsdAvailability::Down, NsdAvailability::Unrecovered];
        Listed {
            nsd: view.nsd,
            name: self.nsd_name(view.nsd),
            port: self.life().backend.port(view.nsd),
            should_answer: !away.contains(&view.state.availability),
        }
    }

    fn show_nsd(&self, view: &NsdView, seen: &Seen) -> ShowNsd {
        let config = self.config();
        let slot = seen.configuration.pool.slots.get(usize::from(view.slot.0));
        let coming = Replacement::noted_in(&seen.configuration).map(|it| it.new);
        let path = match config.nsd.iter().find(|nsd| nsd.id == view.nsd.0) {
            // The path of another node's disk begins with that node's name.
            Some(nsd) if self.is_of_cluster() => nsd.path.clone(),
            Some(nsd) => self.dir.root().join(&nsd.path),
            None => PathBuf::new(),
        };
        let status = seen.nsds.get(&view.nsd);
        ShowNsd {
            id: view.nsd.0,
            name: config.nsd_name(view.nsd),
            path: path.to_string_lossy().into_owned(),
            failure_group: slot.map_or(0, |slot| slot.failure_group),
            holds_metadata: seen.holders.as_ref().map(|holders| holders.contains(&view.nsd)),
            // The new disk has the slot before the replacement is over, and no other replacement
            // can begin until then. In a cluster another mount may have suspended the disk.
            status: match slot.filter(|slot| slot.nsd == view.nsd) {
                _ if coming == Some(view.nsd) => NsdStatus::Replacement,
                Some(slot) => slot.state.status,
                None => view.state.status,
            },
            availability: view.state.availability,
            total_bytes: status.map(|status| status.total),
            free_bytes: status.map(|status| status.free),
            strips: status.map(|status| status.strips),
            bad_strips: view.bad_strips,
            repaired_strips: view.repaired,
            bad_pages: view.bad_pages,
            mended_pages: view.mended_pages,
            recovered_bytes: view.progress.map(|(done, _)| done),
            recovery_bytes: view.progress.map(|(_, total)| total),
            fault: self.life().backend.fault_of(view.nsd),
        }
    }
}
