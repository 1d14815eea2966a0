//! What the library refuses: constants without a known source, values without a meaning,
//! references that lead nowhere.
//!
//! The bounds are far beyond any component; they keep every later product of counts within 64
//! bits and every rate finite, so that the calculation needs no error paths.

use crate::error::PlanError;
use crate::library::Library;
use crate::unit::{Capacity, Rate, RawCapacity};

/// A code has at most this many strips.
const STRIPS_MAX: u64 = 255;
/// One component has at most this many bays, ports, units and so on.
const COUNT_MAX: u64 = 10_000;
/// The largest rate or capacity of one component, in bytes.
const BYTES_MAX: f64 = 1e18;

/// A value of the library.
trait Constant {
    /// What is wrong with it.
    fn fault(&self) -> Option<&'static str>;
}

impl Constant for u64 {
    fn fault(&self) -> Option<&'static str> {
        (*self > COUNT_MAX).then_some("is above 10,000")
    }
}

impl Constant for f64 {
    fn fault(&self) -> Option<&'static str> {
        (!(0.0..=1e15).contains(self)).then_some("must lie in 0 to 10^15")
    }
}

impl Constant for Rate {
    fn fault(&self) -> Option<&'static str> {
        (!(1.0..=BYTES_MAX).contains(&self.0)).then_some("must lie in 1 B/s to 10^18 B/s")
    }
}

impl Constant for Capacity {
    fn fault(&self) -> Option<&'static str> {
        (!(512.0..=BYTES_MAX).contains(&self.0)).then_some("must lie in 512 B to 10^18 B")
    }
}

impl Constant for RawCapacity {
    fn fault(&self) -> Option<&'static str> {
        (!(1.0..=BYTES_MAX).contains(&self.0)).then_some("must lie in 1 B to 10^18 B")
    }
}

impl Library {
    /// Every source key exists, every reference resolves, every number makes sense.
    pub fn check(&self) -> Result<(), PlanError> {
        let wrong = |entry: &str, why: String| Err(PlanError::Entry { entry: entry.into(), why });
        for (entry, source, fault) in self.constants() {
            if let Some(fault) = fault {
                return wrong(entry, format!("the constant of source '{source}' {fault}"));
            }
            let key = source.split(':').next().unwrap_or_default();
            if !source.contains(':') || !self.sources.contains_key(key) {
                return wrong(
                    entry,
                    format!("source '{source}' must be 'key: place' with a key of [[source]]"),
                );
            }
        }
        for enclosure in self.enclosures.values() {
            if let Some(tray) = &enclosure.tray {
                Library::find(&self.trays, "tray", tray)?;
            }
            if enclosure.host_ports.value > 0 && enclosure.host_port_rate.is_none() {
                return wrong(&enclosure.name, "host_ports need a host_port_rate".into());
            }
            for server in &enclosure.servers {
                Library::find(&self.servers, "server", server)?;
            }
            for code in &enclosure.codes {
                Library::find(&self.codes, "code", code)?;
            }
            for profile in &enclosure.profile {
                Library::find(&self.codes, "code", &profile.code)?;
                if profile.per_disks == 0 {
                    return wrong(&enclosure.name, "per_disks must be at least 1".into());
                }
            }
        }
        for code in self.codes.values() {
            let sizes = 1..=STRIPS_MAX;
            if !sizes.contains(&code.data)
                || code.redundant > STRIPS_MAX
                || code.tolerates() > code.redundant
            {
                let rule = format!("needs 1 to {STRIPS_MAX} data strips, tolerates ≤ redundant");
                return wrong(&code.name, rule);
            }
        }
        let shares = self.servers.values().filter_map(|s| Some((&s.name, s.bus_share.as_ref()?)));
        let taken = self.filesystems.values().map(|f| (&f.name, &f.metadata_share));
        let faults = self.disks.values().flat_map(|d| d.ure.iter().map(|ure| (&d.name, ure)));
        for (entry, share) in shares.chain(taken).chain(faults) {
            if share.value > 1.0 {
                return wrong(entry, "a share is at most 1".into());
            }
        }
        for disk in self.disks.values() {
            if let Some(random) = &disk.random_2m
                && random.value.0 > disk.stream_read.value.0.min(disk.stream_write.value.0)
            {
                return wrong(&disk.name, "random_2m cannot exceed the stream rates".into());
            }
        }
        match self.zero() {
            Some((entry, what)) => wrong(entry, format!("{what} must be above 0")),
            None => Ok(()),
        }
    }

    /// What would be divided by, or gate everything, and is 0.
    fn zero(&self) -> Option<(&str, &'static str)> {
        let mut all: Vec<(&str, &'static str, f64)> = Vec::new();
        for disk in self.disks.values() {
            all.push((&disk.name, "iops_write", disk.iops_write.value));
            all.push((&disk.name, "iops_read", disk.iops_read.value));
            all.extend(disk.rpm.iter().map(|rpm| (disk.name.as_str(), "rpm", rpm.value)));
        }
        for enclosure in self.enclosures.values() {
            let printed = enclosure.profile.iter().flat_map(|profile| {
                [
                    &profile.iops_write,
                    &profile.iops_read,
                    &profile.iops_write_local,
                    &profile.iops_read_local,
                ]
            });
            let own = [&enclosure.iops_write, &enclosure.iops_read];
            for iops in own.into_iter().chain(printed).flatten() {
                all.push((&enclosure.name, "IOPS", iops.value));
            }
        }
        for adapter in self.adapters.values() {
            all.push((&adapter.name, "ports", adapter.ports.value as f64));
        }
        for server in self.servers.values() {
            all.push((&server.name, "cores", server.cores.value as f64));
            all.extend(
                server
                    .bus_share
                    .iter()
                    .map(|share| (server.name.as_str(), "bus_share", share.value)),
            );
        }
        for fs in self.filesystems.values() {
            let costs = [
                &fs.server_operation,
                &fs.client_operation,
                &fs.client_mib_write,
                &fs.client_mib_read,
            ];
            all.extend(costs.into_iter().flatten().map(|c| (fs.name.as_str(), "a cost", c.value)));
            let nodes = fs.rebuild_nodes.iter();
            all.extend(nodes.map(|n| (fs.name.as_str(), "rebuild_nodes", n.value as f64)));
        }
        for rack in self.racks.values() {
            all.push((&rack.name, "units", rack.units.value as f64));
        }
        all.into_iter().find(|(_, _, value)| *value == 0.0).map(|(entry, what, _)| (entry, what))
    }

    /// Every constant's entry name and source, and what is wrong with its value.
    fn constants(&self) -> Vec<(&str, &str, Option<&'static str>)> {
        let mut all: Vec<(&str, &str, Option<&'static str>)> = Vec::new();
        macro_rules! note {
            ($name:expr, $($sourced:expr),* $(,)?) => {
                $(for sourced in $sourced.iter() {
                    all.push(($name, sourced.source.as_str(), sourced.value.fault()));
                })*
            };
        }
        for d in self.disks.values() {
            note!(&d.name, [&d.capacity], [&d.stream_write, &d.stream_read], d.random_2m);
            note!(&d.name, [&d.iops_write, &d.iops_read], d.seek, d.first_mib, d.price);
            note!(&d.name, d.latency_write, d.latency_read, d.rpm, d.afr, d.ure);
        }
        for e in self.enclosures.values() {
            note!(&e.name, [&e.bays, &e.controllers, &e.host_ports, &e.rack_units]);
            note!(
                &e.name,
                e.trays_max,
                e.servers_each,
                e.housings,
                e.destroyed,
                e.host_port_rate,
                e.iops_write,
                e.iops_read,
                e.price
            );
            for s in &e.stream {
                note!(&e.name, [&s.write, &s.read]);
            }
            for p in &e.profile {
                note!(&e.name, p.stream_write, p.stream_read, p.iops_write, p.iops_read);
                note!(&e.name, p.iops_write_local, p.iops_read_local);
            }
        }
        for t in self.trays.values() {
            note!(&t.name, [&t.bays, &t.rack_units], t.price);
        }
        for s in self.servers.values() {
            note!(
                &s.name,
                [&s.rack_units, &s.cores],
                s.adapters_max,
                s.bus_rate,
                s.bus_share,
                s.price
            );
            note!(&s.name, s.path_write, s.path_read, s.slot_rate, s.receive);
            note!(&s.name, s.destroyed, s.outages, s.outage_hours);
        }
        for a in self.adapters.values() {
            note!(&a.name, [&a.ports], [&a.port_rate], a.slot_rate, a.app_rate, a.price);
            note!(&a.name, a.latency);
        }
        for r in self.racks.values() {
            note!(&r.name, [&r.units], r.price);
        }
        for s in self.switches.values() {
            note!(&s.name, [&s.ports, &s.rack_units], s.price);
        }
        all.extend(self.constants_of_rooms());
        all.extend(self.constants_of_software());
        all
    }

    /// The same of power and weight.
    fn constants_of_rooms(&self) -> Vec<(&str, &str, Option<&'static str>)> {
        let mut all: Vec<(&str, &str, Option<&'static str>)> = Vec::new();
        macro_rules! note {
            ($($map:ident),*) => {
                $(for part in self.$map.values() {
                    let both = part.watts.iter().chain(&part.kilograms);
                    let name = part.name.as_str();
                    all.extend(both.map(|s| (name, s.source.as_str(), s.value.fault())));
                })*
            };
        }
        note!(disks, enclosures, trays, servers, adapters, racks, switches);
        all
    }

    /// The same of codes, file systems and the ladder.
    fn constants_of_software(&self) -> Vec<(&str, &str, Option<&'static str>)> {
        let mut all: Vec<(&str, &str, Option<&'static str>)> = Vec::new();
        for c in self.codes.values() {
            all.push((&c.name, &c.source, None));
        }
        let ladder = self.latencies.values().map(|l| (l.name.as_str(), &l.value));
        let taken = self.filesystems.values().map(|f| (f.name.as_str(), &f.metadata_share));
        let costs = self.filesystems.values().flat_map(|f| {
            let costs = [
                &f.server_operation,
                &f.client_operation,
                &f.client_mib_write,
                &f.client_mib_read,
                &f.names,
            ];
            costs.into_iter().flatten().map(|cost| (f.name.as_str(), cost))
        });
        for (name, value) in ladder.chain(taken).chain(costs) {
            all.push((name, &value.source, value.value.fault()));
        }
        for f in self.filesystems.values() {
            let nodes = f.rebuild_nodes.iter();
            all.extend(nodes.map(|n| (f.name.as_str(), n.source.as_str(), n.value.fault())));
            let request = f.read_request.iter();
            all.extend(request.map(|r| (f.name.as_str(), r.source.as_str(), r.value.fault())));
        }
        all
    }
}
