//! A design file: building blocks × count, in one or more tiers, and what it resolves to.
//!
//! A *building block* is the smallest increment by which a system grows: some enclosures with
//! their disks and the servers in front of them. A *tier* is one kind of block, repeated. The
//! file names components of the library; `resolve` looks them up, applies the defaults and
//! refuses what cannot be built, so that the calculation meets only complete systems.

use crate::error::PlanError;
use crate::library::{
    Adapter, AdapterKind, Code, Disk, Enclosure, FileSystem, Library, Parity, Rack, Server,
    Sourced, StreamCeiling, Switch, Tray, WriteCache,
};
use crate::mix;
use crate::parts;
use crate::unit::{Capacity, MIB};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a tier is bought for; decides which rules warn.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Large sequential files.
    #[default]
    Streaming,
    /// Small random transfers.
    Iops,
}

/// What a tier holds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Holds {
    /// File data and what the file system keeps about files.
    #[default]
    Both,
    /// File data alone; another tier holds the metadata.
    Data,
    /// Metadata alone.
    Metadata,
}

/// What strips of a stripe, or copies of a block, are kept apart by.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum FailureGroup {
    Disk,
    Server,
    Rack,
    Site,
}

/// The design file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// What it is called in tables and reports.
    pub title: String,
    /// Free text: where it comes from, what it is for.
    pub notes: Option<String>,
    /// File system of the library; `strake` by default.
    pub filesystem: Option<String>,
    #[serde(default)]
    pub rack: RackChoice,
    pub clients: Option<ClientChoice>,
    pub tier: Vec<TierChoice>,
    /// Mixes of operations whose rates and times are asked for.
    #[serde(default)]
    pub mix: Vec<MixChoice>,
}

/// How operations follow each other.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    Sequential,
    Random,
}

/// A mix of operations.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MixChoice {
    pub name: String,
    /// The first tier that holds data by default.
    pub tier: Option<String>,
    /// Share of the data's operations that read.
    pub reads: f64,
    /// Bytes of one.
    pub size: Capacity,
    pub pattern: Pattern,
    /// Operations on their way at a time, of all clients.
    pub queue_depth: u64,
    /// Share of all operations that make, find or remove names.
    #[serde(default)]
    pub names: f64,
    /// Operations a second that are wanted.
    pub wanted: Option<f64>,
}

/// Racks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RackChoice {
    /// Rack of the library.
    pub model: String,
    /// Units of each rack kept for switches and the like.
    pub reserve_units: u64,
    /// Servers stand in other racks than the storage they are cabled to.
    pub servers_apart: bool,
    /// Sites over which the blocks of each tier are spread evenly.
    pub sites: u64,
}

impl Default for RackChoice {
    fn default() -> RackChoice {
        let model = "rack-42u".into();
        RackChoice { model, reserve_units: 0, servers_apart: false, sites: 1 }
    }
}

/// The nodes that use the file system. Absent: there are always enough of them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClientChoice {
    pub model: String,
    pub count: u64,
    pub lan: Option<String>,
    #[serde(default = "one")]
    pub lan_per_client: u64,
    /// Small operations that a client has on their way at a time; one per core by default.
    pub queue_depth: Option<u64>,
}

/// One kind of building block, repeated.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TierChoice {
    pub name: String,
    /// How many building blocks.
    pub blocks: u64,
    #[serde(default)]
    pub workload: Workload,
    /// `data` and `metadata` make separate metadata disks.
    #[serde(default)]
    pub holds: Holds,
    /// Copies that the file system keeps above the redundancy of the storage, in different
    /// failure groups; 1 by default.
    #[serde(default = "one")]
    pub replicas: u64,
    /// What strips or copies are kept apart by; servers (or blocks) by default.
    pub failure_group: Option<FailureGroup>,
    pub storage: StorageChoice,
    pub servers: Option<ServerChoice>,
}

/// The storage of one building block.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StorageChoice {
    pub enclosure: String,
    /// Enclosures in a block.
    pub per_block: u64,
    /// Expansion trays behind each enclosure.
    #[serde(default)]
    pub trays: u64,
    pub disk: String,
    /// Disks in the enclosure and in each tray, in that order; full by default.
    pub disks_per_tray: Option<Vec<u64>>,
    pub code: String,
    /// File system block; 4 MiB by default.
    pub block_size: Option<Capacity>,
    /// RAID segment (strip); block ÷ data disks by default.
    pub segment: Option<Capacity>,
    /// The enclosure's first mode by default.
    pub write_cache: Option<WriteCache>,
    /// The enclosure's own way by default.
    pub parity: Option<Parity>,
    /// Disks' worth of spare space per block (declustered codes).
    #[serde(default)]
    pub spares: u64,
    /// Share of a disk's time that a rebuild may take; a quarter by default.
    pub rebuild_share: Option<f64>,
    /// The design knows that a disk holds several strips of a stripe, so that its code survives
    /// fewer lost disks than it could: a warning then, not an error.
    #[serde(default)]
    pub strips_share_disks: bool,
}

/// The servers of one building block.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerChoice {
    pub model: String,
    pub per_block: u64,
    /// Network adapter; without one the servers themselves are the clients.
    pub lan: Option<String>,
    #[serde(default = "one")]
    pub lan_per_server: u64,
    /// Storage adapter.
    pub hba: Option<String>,
    #[serde(default = "one")]
    pub hba_per_server: u64,
    /// SAS switch between servers and enclosures.
    pub switch: Option<String>,
    #[serde(default = "one")]
    pub switches_per_block: u64,
}

/// A tier has at most this many building blocks, and a system at most this many clients.
const BLOCKS_MAX: u64 = 100_000;
/// A building block has at most this many parts of one kind.
const PER_BLOCK_MAX: u64 = 1000;

/// A count of the design must be something that can be built, and products of counts must stay
/// within 64 bits.
fn counts(
    wrong: &dyn Fn(String) -> PlanError,
    fields: &[(&str, u64, u64)],
) -> Result<(), PlanError> {
    for (name, value, most) in fields {
        if !(1..=*most).contains(value) {
            return Err(wrong(format!("{name} must be at least 1 and at most {most}")));
        }
    }
    Ok(())
}

fn one() -> u64 {
    1
}

/// A resolved design.
#[derive(Clone, Debug)]
pub struct System<'a> {
    pub title: String,
    pub library: &'a Library,
    pub filesystem: &'a FileSystem,
    pub rack: &'a Rack,
    pub reserve_units: u64,
    pub servers_apart: bool,
    pub sites: u64,
    pub clients: Option<Clients<'a>>,
    pub tiers: Vec<Tier<'a>>,
    /// Mixes, and the index of the tier of each.
    pub mixes: Vec<(MixChoice, usize)>,
}

/// Resolved clients.
#[derive(Clone, Debug)]
pub struct Clients<'a> {
    pub model: &'a Server,
    pub count: u64,
    pub lan: Option<&'a Adapter>,
    pub lan_per_client: u64,
    pub queue_depth: u64,
}

/// A resolved tier.
#[derive(Clone, Debug)]
pub struct Tier<'a> {
    pub library: &'a Library,
    pub filesystem: &'a FileSystem,
    pub name: String,
    pub blocks: u64,
    pub workload: Workload,
    pub holds: Holds,
    pub replicas: u64,
    pub failure_group: FailureGroup,
    pub storage: Storage<'a>,
    pub servers: Option<Servers<'a>>,
}

/// Resolved storage of a block.
#[derive(Clone, Debug)]
pub struct Storage<'a> {
    pub enclosure: &'a Enclosure,
    pub per_block: u64,
    pub tray: Option<&'a Tray>,
    pub trays: u64,
    pub disk: &'a Disk,
    /// Disks in the enclosure and each tray.
    pub disks_per_tray: Vec<u64>,
    pub code: &'a Code,
    pub block_size: f64,
    pub segment: f64,
    /// The controllers' ceiling row for this cache mode and number of disks.
    pub ceiling: Option<&'a StreamCeiling>,
    pub parity: Parity,
    pub spares: u64,
    pub rebuild_share: f64,
    pub strips_share_disks: bool,
    /// The largest piece that the file system's read-ahead asks of a disk.
    pub read_request: Option<&'a Sourced<Capacity>>,
}

/// Resolved servers of a block.
#[derive(Clone, Debug)]
pub struct Servers<'a> {
    pub model: &'a Server,
    pub per_block: u64,
    pub lan: Option<&'a Adapter>,
    pub lan_per_server: u64,
    pub hba: Option<&'a Adapter>,
    pub hba_per_server: u64,
    pub switch: Option<&'a Switch>,
    pub switches_per_block: u64,
}

impl Storage<'_> {
    /// Disks behind one enclosure.
    pub fn disks_per_enclosure(&self) -> u64 {
        self.disks_per_tray.iter().sum()
    }

    /// Whole arrays behind one enclosure (controllers), else none.
    pub fn arrays_per_enclosure(&self) -> u64 {
        match self.parity {
            Parity::Controller => self.disks_per_enclosure() / self.code.width(),
            Parity::Server | Parity::Client => 0,
        }
    }

    /// Disks of one block that carry data.
    pub fn disks_in_use(&self) -> u64 {
        let per_enclosure = match self.parity {
            Parity::Controller => self.arrays_per_enclosure() * self.code.width(),
            Parity::Server | Parity::Client => self.disks_per_enclosure(),
        };
        per_enclosure * self.per_block
    }

    /// What the library prints for such disks in this enclosure, if it does.
    pub fn profile(&self) -> Option<&crate::library::Profile> {
        self.enclosure
            .profile
            .iter()
            .find(|p| p.disk_class == self.disk.class && p.code == self.code.name)
    }
}

impl Design {
    /// Reads a design file.
    pub fn read(path: &Path) -> Result<Design, PlanError> {
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => PlanError::Usage(format!(
                "{}: no such file; `strake plan new NAME` writes a design to begin with",
                path.display()
            )),
            _ => PlanError::read(path, error),
        })?;
        Design::parse(&path.display().to_string(), &text)
    }

    /// Parses the text of a design; `file` is only for messages.
    pub fn parse(file: &str, text: &str) -> Result<Design, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::schema(file, &error))
    }

    /// Looks every component up and applies the defaults.
    pub fn resolve<'a>(&self, library: &'a Library) -> Result<System<'a>, PlanError> {
        if self.tier.is_empty() {
            return Err(PlanError::Usage(
                "the design has no tier; add a [[tier]] with [tier.storage]".into(),
            ));
        }
        let filesystem = self.filesystem.as_deref().unwrap_or("strake");
        counts(&PlanError::Usage, &[("[rack] sites", self.rack.sites, PER_BLOCK_MAX)])?;
        let rack = Library::find(&library.racks, "rack", &self.rack.model)?;
        if self.rack.reserve_units >= rack.units.value {
            return Err(PlanError::Usage(format!(
                "[rack] reserve_units = {} leaves nothing of the {}U of {}",
                self.rack.reserve_units, rack.units.value, rack.name
            )));
        }
        let filesystem = Library::find(&library.filesystems, "filesystem", filesystem)?;
        let tier = |choice: &TierChoice| choice.resolve(library, filesystem);
        let tiers: Vec<Tier> = self.tier.iter().map(tier).collect::<Result<_, _>>()?;
        let mixes = self.mix.iter().map(|mix| Ok((mix.clone(), mix::tier_of(mix, &tiers)?)));
        Ok(System {
            mixes: mixes.collect::<Result<_, PlanError>>()?,
            title: self.title.clone(),
            library,
            filesystem,
            rack,
            reserve_units: self.rack.reserve_units,
            servers_apart: self.rack.servers_apart,
            sites: self.rack.sites,
            clients: self.clients.as_ref().map(|c| c.resolve(library)).transpose()?,
            tiers,
        })
    }
}

impl ClientChoice {
    fn resolve<'a>(&self, library: &'a Library) -> Result<Clients<'a>, PlanError> {
        let fields = [
            ("[clients] count", self.count, BLOCKS_MAX),
            ("[clients] lan_per_client", self.lan_per_client, PER_BLOCK_MAX),
        ];
        counts(&PlanError::Usage, &fields)?;
        let model = Library::find(&library.servers, "server", &self.model)?;
        let queue_depth = self.queue_depth.unwrap_or(model.cores.value);
        counts(&PlanError::Usage, &[("[clients] queue_depth", queue_depth, BLOCKS_MAX)])?;
        let clients = Clients {
            model,
            count: self.count,
            lan: self.lan.as_deref().map(|name| lan(library, name)).transpose()?,
            lan_per_client: self.lan_per_client,
            queue_depth,
        };
        parts::clients(&clients)?;
        Ok(clients)
    }
}

impl TierChoice {
    fn resolve<'a>(
        &self,
        library: &'a Library,
        filesystem: &'a FileSystem,
    ) -> Result<Tier<'a>, PlanError> {
        let wrong = |why: String| PlanError::Design { tier: self.name.clone(), why };
        let most = self.blocks.min(PER_BLOCK_MAX);
        counts(&wrong, &[("blocks", self.blocks, BLOCKS_MAX)])?;
        if !(1..=most).contains(&self.replicas) {
            return Err(wrong(format!(
                "replicas = {} needs as many building blocks, which are its failure groups; there \
                 are {}",
                self.replicas, self.blocks
            )));
        }
        let storage = self.storage.resolve(library, filesystem, &wrong)?;
        parts::storage(&storage, &wrong)?;
        let servers = self.servers.as_ref().map(|s| s.resolve(library, &wrong)).transpose()?;
        if let Some(servers) = &servers {
            parts::servers(&storage, servers, &wrong)?;
        }
        Ok(Tier {
            library,
            filesystem,
            name: self.name.clone(),
            blocks: self.blocks,
            workload: self.workload,
            holds: self.holds,
            replicas: self.replicas,
            failure_group: self.failure_group.unwrap_or(FailureGroup::Server),
            storage,
            servers,
        })
    }
}

impl StorageChoice {
    fn resolve<'a>(
        &self,
        library: &'a Library,
        filesystem: &'a FileSystem,
        wrong: &dyn Fn(String) -> PlanError,
    ) -> Result<Storage<'a>, PlanError> {
        let enclosure = Library::find(&library.enclosures, "enclosure", &self.enclosure)?;
        let disk = Library::find(&library.disks, "disk", &self.disk)?;
        let code = Library::find(&library.codes, "code", &self.code)?;
        counts(wrong, &[("storage.per_block", self.per_block, PER_BLOCK_MAX)])?;
        if !enclosure.disk_classes.contains(&disk.class) {
            let classes = enclosure.disk_classes.join(", ");
            return Err(wrong(format!(
                "{} does not take {} disks; it takes {classes}",
                enclosure.name, disk.class
            )));
        }
        let tray = self.tray(library, enclosure, wrong)?;
        let disks_per_tray = self.disks_per_tray(enclosure, tray, wrong)?;
        let disks: u64 = disks_per_tray.iter().sum();
        if disks == 0 {
            return Err(wrong(
                "the enclosures hold no disk; give disks_per_tray at least one".into(),
            ));
        }
        let parity = self.parity.unwrap_or(enclosure.parity);
        if parity == Parity::Controller && disks < code.width() {
            return Err(wrong(format!(
                "{disks} disks per enclosure are fewer than the {} of one {} array; add disks or \
                 choose a narrower code",
                code.width(),
                code.name
            )));
        }
        let block_size = self.block_size.map_or(4.0 * MIB, |size| size.0);
        let segment = self.segment.map_or(block_size / code.data as f64, |size| size.0);
        let rebuild_share = self.rebuild_share.unwrap_or(0.25);
        let sizes = 512.0..=1e12;
        if !sizes.contains(&block_size)
            || !sizes.contains(&segment)
            || !(0.01..=1.0).contains(&rebuild_share)
        {
            return Err(wrong(
                "block_size and segment must lie in 512 B to 10^12 B, rebuild_share in 0.01 to 1"
                    .into(),
            ));
        }
        if self.spares >= disks * self.per_block {
            return Err(wrong("spares leave no disk for data; lower spares".into()));
        }
        Ok(Storage {
            enclosure,
            per_block: self.per_block,
            tray,
            trays: self.trays,
            disk,
            ceiling: self.ceiling(enclosure, disks, wrong)?,
            disks_per_tray,
            code,
            block_size,
            segment,
            parity,
            spares: self.spares,
            rebuild_share,
            strips_share_disks: self.strips_share_disks,
            read_request: filesystem.read_request.as_ref(),
        })
    }

    fn tray<'a>(
        &self,
        library: &'a Library,
        enclosure: &Enclosure,
        wrong: &dyn Fn(String) -> PlanError,
    ) -> Result<Option<&'a Tray>, PlanError> {
        let tray = match (&enclosure.tray, self.trays) {
            (_, 0) => None,
            (None, _) => {
                return Err(wrong(format!("{} takes no trays; set trays = 0", enclosure.name)));
            }
            (Some(name), _) => Some(Library::find(&library.trays, "tray", name)?),
        };
        let trays_max = enclosure.trays_max.as_ref().map_or(0, |max| max.value);
        if self.trays > trays_max {
            return Err(wrong(format!(
                "{} takes at most {trays_max} trays, not {}",
                enclosure.name, self.trays
            )));
        }
        Ok(tray)
    }

    fn disks_per_tray(
        &self,
        enclosure: &Enclosure,
        tray: Option<&Tray>,
        wrong: &dyn Fn(String) -> PlanError,
    ) -> Result<Vec<u64>, PlanError> {
        let mut bays = vec![enclosure.bays.value];
        if let Some(tray) = tray {
            bays.extend((0..self.trays).map(|_| tray.bays.value));
        }
        let Some(disks) = &self.disks_per_tray else {
            return Ok(bays);
        };
        if disks.len() != bays.len() || disks.iter().zip(&bays).any(|(disk, bay)| disk > bay) {
            return Err(wrong(format!(
                "disks_per_tray must list the enclosure and each tray with at most {bays:?} disks"
            )));
        }
        Ok(disks.clone())
    }

    fn ceiling<'a>(
        &self,
        enclosure: &'a Enclosure,
        disks: u64,
        wrong: &dyn Fn(String) -> PlanError,
    ) -> Result<Option<&'a StreamCeiling>, PlanError> {
        let Some(first) = enclosure.stream.first() else {
            return Ok(None);
        };
        let mode = self.write_cache.unwrap_or(first.write_cache);
        let row = enclosure
            .stream
            .iter()
            .filter(|row| row.write_cache == mode && row.disks_min <= disks)
            .max_by_key(|row| row.disks_min);
        let modes = || {
            let modes = enclosure.stream.iter().map(|row| format!("{:?}", row.write_cache));
            modes.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        row.map(Some).ok_or_else(|| {
            wrong(format!(
                "the library has no rate of {} with write_cache {mode:?}; it has {}",
                enclosure.name,
                modes().join(", ")
            ))
        })
    }
}

impl ServerChoice {
    fn resolve<'a>(
        &self,
        library: &'a Library,
        wrong: &dyn Fn(String) -> PlanError,
    ) -> Result<Servers<'a>, PlanError> {
        let fields = [
            ("servers.per_block", self.per_block, PER_BLOCK_MAX),
            ("servers.lan_per_server", self.lan_per_server, PER_BLOCK_MAX),
            ("servers.hba_per_server", self.hba_per_server, PER_BLOCK_MAX),
            ("servers.switches_per_block", self.switches_per_block, PER_BLOCK_MAX),
        ];
        counts(wrong, &fields)?;
        let hba = match &self.hba {
            None => None,
            Some(name) => Some(Library::find(&library.adapters, "adapter", name)?),
        };
        if let Some(hba) = hba
            && hba.kind == AdapterKind::Lan
        {
            return Err(wrong(format!("{} is a network adapter; give it as lan", hba.name)));
        }
        Ok(Servers {
            model: Library::find(&library.servers, "server", &self.model)?,
            per_block: self.per_block,
            lan: self.lan.as_deref().map(|name| lan(library, name)).transpose()?,
            lan_per_server: self.lan_per_server,
            hba,
            hba_per_server: self.hba_per_server,
            switch: match &self.switch {
                None => None,
                Some(name) => Some(Library::find(&library.switches, "switch", name)?),
            },
            switches_per_block: self.switches_per_block,
        })
    }
}

fn lan<'a>(library: &'a Library, name: &str) -> Result<&'a Adapter, PlanError> {
    let adapter = Library::find(&library.adapters, "adapter", name)?;
    if adapter.kind != AdapterKind::Lan {
        return Err(PlanError::Usage(format!(
            "{name} is a storage adapter; give it as hba and choose a network adapter as lan"
        )));
    }
    Ok(adapter)
}
