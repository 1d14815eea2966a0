//! The component library: what disks, enclosures, servers, adapters, racks and codes can do.
//!
//! It is data: TOML files compiled into the binary, plus any number of directories of the user's
//! own, read after them; an entry of the same kind and name replaces the earlier one. Every
//! constant is written `{ value = …, source = "key: place" }` and `key` must be one of the
//! `[[source]]` entries, so that no number enters a calculation without an origin. Unknown
//! fields are errors, because a misspelt field would silently fall back to a default.

use crate::error::PlanError;
use crate::unit::{Capacity, Rate, RawCapacity};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A constant and where it comes from.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Sourced<T> {
    /// The constant.
    pub value: T,
    /// `key: place`, with `key` one of the library's sources.
    pub source: String,
}

/// Where constants come from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What other entries refer to.
    pub key: String,
    /// The document.
    pub title: String,
}

/// A kind of disk.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    pub name: String,
    pub description: String,
    /// Family (`nl-sas`, `sas-15k`, `ssd`, `nvme`…) that enclosures accept.
    pub class: String,
    /// The maker's capacity.
    pub capacity: Sourced<RawCapacity>,
    /// Rate of one disk in a sequential write.
    pub stream_write: Sourced<Rate>,
    /// Rate of one disk in a sequential read.
    pub stream_read: Sourced<Rate>,
    /// Rate of random 2 MiB transfers; gives the positioning time. Absent for solid state.
    pub random_2m: Option<Sourced<Rate>>,
    /// Heads must move to a place before they read it; true where `random_2m` is given.
    #[serde(default)]
    pub rotating: bool,
    /// Turns a minute.
    pub rpm: Option<Sourced<f64>>,
    /// Seconds of a seek; the latency ladder's `disk-seek` where `random_2m` is given.
    pub seek: Option<Sourced<f64>>,
    /// Seconds of each MiB of a read that nothing announced; the ladder's `read-1m-disk` likewise.
    pub first_mib: Option<Sourced<f64>>,
    /// Random 4 KiB writes per second.
    pub iops_write: Sourced<f64>,
    /// Random 4 KiB reads per second.
    pub iops_read: Sourced<f64>,
    /// Seconds of one 4 KiB write and read when nothing else waits; else the ladder's `flash-write`
    /// and `flash-read`, or one operation of a disk with heads.
    pub latency_write: Option<Sourced<f64>>,
    pub latency_read: Option<Sourced<f64>>,
    /// Share of such disks that fail within a year.
    pub afr: Option<Sourced<f64>>,
    /// Bits that cannot be read, of each bit that is.
    pub ure: Option<Sourced<f64>>,
    /// Price of one.
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

impl Disk {
    /// Whether heads move.
    pub fn rotates(&self) -> bool {
        self.rotating || self.random_2m.is_some()
    }
}

/// What the write cache of a RAID controller does.
#[derive(Clone, Copy, Debug, Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCache {
    /// Data is on disk when a write returns.
    Off,
    /// Data is in the caches of both controllers when a write returns.
    Mirrored,
    /// Data is in one controller's cache: fastest, and lost with that controller.
    Unmirrored,
}

/// Who computes the redundancy.
#[derive(Clone, Copy, Debug, Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Parity {
    /// RAID controllers, array by array.
    Controller,
    /// The server pair, declustered over all its disks.
    Server,
    /// The client, declustered over all servers: parity crosses the network too.
    Client,
}

/// What the controllers of an enclosure carry with at least so many disks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamCeiling {
    pub write_cache: WriteCache,
    /// Disks behind the controllers from which this row holds.
    pub disks_min: u64,
    pub write: Sourced<Rate>,
    pub read: Sourced<Rate>,
}

/// What a document prints for so many disks of a class behind this enclosure with this code.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub disk_class: String,
    pub code: String,
    /// The figures below are for this many disks and scale with the number of disks.
    pub per_disks: u64,
    pub stream_write: Option<Sourced<Rate>>,
    pub stream_read: Option<Sourced<Rate>>,
    pub iops_write: Option<Sourced<f64>>,
    pub iops_read: Option<Sourced<f64>>,
    /// With good locality.
    pub iops_write_local: Option<Sourced<f64>>,
    /// With good locality.
    pub iops_read_local: Option<Sourced<f64>>,
}

/// A controller enclosure, or the bays of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enclosure {
    pub name: String,
    pub description: String,
    /// Disk classes that fit.
    pub disk_classes: Vec<String>,
    /// Disk bays of its own.
    pub bays: Sourced<u64>,
    /// Expansion tray that can be added.
    pub tray: Option<String>,
    pub trays_max: Option<Sourced<u64>>,
    /// Physical enclosures that it consists of; 1 where nothing is said.
    pub housings: Option<Sourced<u64>>,
    /// RAID controllers inside (losing one leaves the others).
    pub controllers: Sourced<u64>,
    /// Ports towards the servers; 0 where the servers are inside or the bus connects them.
    pub host_ports: Sourced<u64>,
    pub host_port_rate: Option<Sourced<Rate>>,
    /// What these ports speak; SAS where nothing is said.
    pub host_port_kind: Option<AdapterKind>,
    pub rack_units: Sourced<u64>,
    pub iops_write: Option<Sourced<f64>>,
    pub iops_read: Option<Sourced<f64>>,
    pub parity: Parity,
    /// Servers that `solve` may put before it; none: `solve` leaves this enclosure out.
    #[serde(default)]
    pub servers: Vec<String>,
    /// Servers that each enclosure brings; absent where any number may be cabled to it.
    pub servers_each: Option<Sourced<u64>>,
    /// Share of such enclosures that is lost with all their disks within a year; of one housing.
    pub destroyed: Option<Sourced<f64>>,
    /// Codes that `solve` may use.
    #[serde(default)]
    pub codes: Vec<String>,
    #[serde(default)]
    pub stream: Vec<StreamCeiling>,
    #[serde(default)]
    pub profile: Vec<Profile>,
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

impl Enclosure {
    /// Physical enclosures that it consists of.
    pub fn housings(&self) -> u64 {
        self.housings.as_ref().map_or(1, |housings| housings.value.max(1))
    }

    /// Whether the disks sit in a server or on an adapter inside it, so that no other server
    /// reaches them.
    pub fn inside_server(&self) -> bool {
        self.host_ports.value == 0 && self.parity != Parity::Server
    }
}

/// An expansion tray.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tray {
    pub name: String,
    pub description: String,
    pub bays: Sourced<u64>,
    pub rack_units: Sourced<u64>,
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

/// A server or a client node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub name: String,
    pub description: String,
    pub rack_units: Sourced<u64>,
    pub cores: Sourced<u64>,
    /// Network and storage adapters that fit together.
    pub adapters_max: Option<Sourced<u64>>,
    /// What one of its PCI slots carries; a faster adapter in it is slowed down to this.
    pub slot_rate: Option<Sourced<Rate>>,
    /// `aix` where the documents' machine ran that; Linux where nothing is said.
    pub os: Option<String>,
    /// What the I/O bus carries in theory.
    pub bus_rate: Option<Sourced<Rate>>,
    /// The share of it that a design may count on.
    pub bus_share: Option<Sourced<f64>>,
    /// What the file system's own software path carries on such a node (from `calibrate`).
    pub path_write: Option<Sourced<Rate>>,
    pub path_read: Option<Sourced<Rate>>,
    /// Share of such servers that is lost with all their disks within a year.
    pub destroyed: Option<Sourced<f64>>,
    /// Outages of one a year that lose nothing, and how many hours each lasts.
    pub outages: Option<Sourced<f64>>,
    pub outage_hours: Option<Sourced<f64>>,
    /// What that path takes in from the network, where this was measured apart.
    pub receive: Option<Sourced<Rate>>,
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

/// What a network adapter speaks.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    #[default]
    Ethernet,
    /// InfiniBand with RDMA.
    Infiniband,
    /// TCP/IP over InfiniBand.
    Ipoib,
}

/// What an adapter connects to.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterKind {
    Lan,
    Sas,
    Fc,
}

/// A network or storage adapter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    pub name: String,
    pub description: String,
    pub kind: AdapterKind,
    /// What a network adapter speaks; Ethernet where nothing is said.
    #[serde(default)]
    pub fabric: Fabric,
    /// Whether `solve` may put it into storage servers.
    #[serde(default = "yes")]
    pub for_servers: bool,
    pub ports: Sourced<u64>,
    pub port_rate: Sourced<Rate>,
    /// Limit of the PCI slot it sits in.
    pub slot_rate: Option<Sourced<Rate>>,
    /// What applications measure through the whole adapter.
    pub app_rate: Option<Sourced<Rate>>,
    /// Seconds that 2 KiB take to the other side; else a rung of the ladder.
    pub latency: Option<Sourced<f64>>,
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

fn yes() -> bool {
    true
}

/// A rack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    pub name: String,
    pub description: String,
    pub units: Sourced<u64>,
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

/// A SAS switch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    pub name: String,
    pub description: String,
    pub ports: Sourced<u64>,
    pub rack_units: Sourced<u64>,
    pub price: Option<Sourced<f64>>,
    /// Power under load, and weight, of one without its other parts.
    pub watts: Option<Sourced<f64>>,
    pub kilograms: Option<Sourced<f64>>,
}

/// A redundancy code.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    pub name: String,
    pub description: String,
    /// Data strips.
    pub data: u64,
    /// Parity strips, or further copies.
    pub redundant: u64,
    /// Losses survived for certain; `redundant` unless said otherwise.
    pub tolerates: Option<u64>,
    /// Copies instead of parity.
    #[serde(default)]
    pub mirrored: bool,
    pub source: String,
}

impl Code {
    /// Disks in one array.
    pub fn width(&self) -> u64 {
        self.data + self.redundant
    }

    /// Disk operations behind one small random write: every copy, or read and write the data
    /// strip and each parity strip.
    pub fn small_write_operations(&self) -> u64 {
        if self.mirrored {
            self.width() / self.data.min(self.width())
        } else {
            2 * (1 + self.redundant)
        }
    }

    /// Losses survived for certain.
    pub fn tolerates(&self) -> u64 {
        self.tolerates.unwrap_or(self.redundant)
    }
}

/// What a file system takes for itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSystem {
    pub name: String,
    pub description: String,
    pub metadata_share: Sourced<f64>,
    /// Nodes that rebuild at a time; all servers where nothing is said.
    pub rebuild_nodes: Option<Sourced<u64>>,
    /// Seconds of one core that a small operation costs at a server and at a client.
    pub server_operation: Option<Sourced<f64>>,
    pub client_operation: Option<Sourced<f64>>,
    /// Seconds of one core that a MiB costs at a client; written ones before redundancy.
    pub client_mib_write: Option<Sourced<f64>>,
    pub client_mib_read: Option<Sourced<f64>>,
    /// Operations on names a second of the node that leads the metadata.
    pub names: Option<Sourced<f64>>,
    /// The largest piece that its read-ahead asks of a disk, where that is less than a strip.
    pub read_request: Option<Sourced<Capacity>>,
}

/// A rung of the latency ladder, in nanoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    pub name: String,
    pub value: Sourced<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LibraryFile {
    source: Vec<Source>,
    disk: Vec<Disk>,
    enclosure: Vec<Enclosure>,
    tray: Vec<Tray>,
    server: Vec<Server>,
    adapter: Vec<Adapter>,
    rack: Vec<Rack>,
    switch: Vec<Switch>,
    code: Vec<Code>,
    filesystem: Vec<FileSystem>,
    latency: Vec<Latency>,
}

/// All components, by kind and name.
#[derive(Clone, Debug, Default)]
pub struct Library {
    pub sources: BTreeMap<String, Source>,
    pub disks: BTreeMap<String, Disk>,
    pub enclosures: BTreeMap<String, Enclosure>,
    pub trays: BTreeMap<String, Tray>,
    pub servers: BTreeMap<String, Server>,
    pub adapters: BTreeMap<String, Adapter>,
    pub racks: BTreeMap<String, Rack>,
    pub switches: BTreeMap<String, Switch>,
    pub codes: BTreeMap<String, Code>,
    pub filesystems: BTreeMap<String, FileSystem>,
    pub latencies: BTreeMap<String, Latency>,
    /// Every entry as it was written, by kind and name.
    pub entries: BTreeMap<String, BTreeMap<String, toml::Value>>,
}

const BUILT_IN: [(&str, &str); 7] = [
    ("sources.toml", include_str!("../library/sources.toml")),
    ("disks.toml", include_str!("../library/disks.toml")),
    ("enclosures.toml", include_str!("../library/enclosures.toml")),
    ("servers.toml", include_str!("../library/servers.toml")),
    ("adapters.toml", include_str!("../library/adapters.toml")),
    ("codes.toml", include_str!("../library/codes.toml")),
    ("latency.toml", include_str!("../library/latency.toml")),
];

impl Library {
    /// The library that comes with the program.
    pub fn built_in() -> Library {
        let mut library = Library::default();
        for (name, text) in BUILT_IN {
            library.add(name, text).expect("invariant: the built-in library is tested");
        }
        library.check().expect("invariant: the built-in library is tested");
        library
    }

    /// Adds every `*.toml` file of a directory, in the order of their names.
    pub fn add_directory(&mut self, directory: &Path) -> Result<(), PlanError> {
        let io = |error| PlanError::read(directory, error);
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                paths.push(path);
            }
        }
        paths.sort();
        for path in &paths {
            let text = std::fs::read_to_string(path).map_err(|e| PlanError::read(path, e))?;
            self.add(&path.display().to_string(), &text)?;
        }
        self.check()
    }

    /// Adds the entries of one file, replacing those of the same name.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), PlanError> {
        let parsed: LibraryFile =
            toml::from_str(text).map_err(|error| PlanError::schema(file, &error))?;
        let written: toml::Table =
            toml::from_str(text).map_err(|error| PlanError::schema(file, &error))?;
        for (kind, entries) in written {
            for entry in entries.as_array().into_iter().flatten() {
                let name = ["name", "key"].iter().find_map(|field| entry.get(*field)?.as_str());
                let of_kind = self.entries.entry(kind.clone()).or_default();
                of_kind.insert(name.unwrap_or_default().to_string(), entry.clone());
            }
        }
        macro_rules! take {
            ($($field:ident by $key:ident into $map:ident),* $(,)?) => {
                $(for entry in parsed.$field {
                    self.$map.insert(entry.$key.clone(), entry);
                })*
            };
        }
        take!(
            source by key into sources, disk by name into disks,
            enclosure by name into enclosures, tray by name into trays,
            server by name into servers, adapter by name into adapters,
            rack by name into racks, switch by name into switches,
            code by name into codes, filesystem by name into filesystems,
            latency by name into latencies,
        );
        Ok(())
    }

    /// Looks a component up; the error names those that exist.
    pub fn find<'a, T>(
        map: &'a BTreeMap<String, T>,
        kind: &'static str,
        name: &str,
    ) -> Result<&'a T, PlanError> {
        map.get(name).ok_or_else(|| PlanError::Unknown {
            kind,
            name: name.into(),
            known: map.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
#[path = "library_test.rs"]
mod library_test;
