//! From measurements of this machine to library entries and a design that uses them.
//!
//! The planner then predicts `strake up` on this very machine: one building block, whose disks
//! are the devices that were measured, whose server is this machine. Several NSDs on one device
//! share its rate, so devices count, not NSDs. Pure: measurements in, TOML out.

use crate::measure::{DiskRates, MountRates};
use crate::unit::MIB;
use std::fmt::Write as _;

/// All measurements of a machine.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Disks, each device once.
    pub disks: Vec<DiskRates>,
    /// The file system's own path, if a mount was measured.
    pub mount: Option<MountRates>,
    /// Bytes per second over the loopback interface.
    pub loopback: f64,
    /// Name and bits per second.
    pub interfaces: Vec<(String, f64)>,
    pub cores: usize,
}

impl Measured {
    /// Adds a disk unless the same device was measured already; says whether it did.
    pub fn add_disk(&mut self, disk: DiskRates) -> bool {
        let new = self.disks.iter().all(|known| known.device != disk.device);
        if new {
            self.disks.push(disk);
        }
        new
    }

    /// The slowest device; stripes wait for it, so the design takes all devices to be like it.
    fn slowest(&self) -> Option<usize> {
        let order = |a: &usize, b: &usize| self.disks[*a].write.total_cmp(&self.disks[*b].write);
        (0..self.disks.len()).min_by(order)
    }
}

fn rate(bytes_per_second: f64, how: &str) -> String {
    format!("{{ value = \"{:.1}MB/s\", source = \"calibrated: {how}\" }}", bytes_per_second / MIB)
}

fn number(value: f64, how: &str) -> String {
    format!("{{ value = {value:.0}, source = \"calibrated: {how}\" }}")
}

fn seconds(value: f64, how: &str) -> String {
    format!("{{ value = {value:.9}, source = \"calibrated: {how}\" }}")
}

/// The library file.
pub fn library_text(measured: &Measured) -> String {
    let mut out = String::from(
        "# Measured on this machine by `strake plan calibrate`; give the directory of this file to\n\
         # `strake plan --library DIR …`.\n\n[[source]]\nkey = \"calibrated\"\n\
         title = \"Measured on this machine by strake plan calibrate\"\n",
    );
    for (index, disk) in measured.disks.iter().enumerate() {
        let how = if disk.direct { "direct I/O" } else { "through the page cache, no direct I/O" };
        let _ = write!(
            out,
            "\n[[disk]]\nname = \"this-disk-{index}\"\ndescription = \"device {index} of this machine\"\n\
             class = \"calibrated\"\ncapacity = {{ value = \"{:.0}B\", source = \"calibrated: statvfs\" }}\n\
             stream_write = {}\nstream_read = {}\n",
            disk.capacity,
            rate(disk.write, &format!("4 MiB, 4 threads, {how}, sync counted")),
            rate(disk.read, &format!("4 MiB, 4 threads, {how}")),
        );
        // Where the place does not matter there is no positioning time to derive.
        if disk.random_2m < 0.95 * disk.write.min(disk.read) {
            let _ = writeln!(out, "random_2m = {}", rate(disk.random_2m, "2 MiB, 4 threads"));
        }
        let _ = write!(
            out,
            "seek = {}\nfirst_mib = {}\niops_write = {}\niops_read = {}\n",
            seconds(disk.seek, "one 4 KiB read, 1 thread"),
            seconds(disk.first_mib, "one 2 MiB read less the seek, 1 thread"),
            number(disk.iops_write, "4 KiB, 16 threads, sync counted"),
            number(disk.iops_read, "4 KiB, 16 threads"),
        );
    }
    machine(&mut out, measured);
    adapters(&mut out, measured);
    out
}

fn machine(out: &mut String, measured: &Measured) {
    let devices = measured.disks.len().max(1) as f64;
    let none = number(0.0, "the disks are inside this machine");
    let _ = write!(
        out,
        "\n[[enclosure]]\nname = \"this-machine\"\ndescription = \"the disks of this machine\"\n\
         disk_classes = [\"calibrated\"]\nbays = {}\ncontrollers = {none}\nhost_ports = {none}\n\
         rack_units = {none}\nparity = \"client\"\nservers = [\"this-machine\"]\n\
         servers_each = {}\ncodes = [\"4+2p\", \"8+2p\"]\n",
        number(devices, "devices measured"),
        number(1.0, "one machine"),
    );
    let _ = write!(
        out,
        "\n[[server]]\nname = \"this-machine\"\ndescription = \"this machine\"\nrack_units = {}\n\
         cores = {}\n",
        number(1.0, "assumed"),
        number(measured.cores as f64, "processors online"),
    );
    if let Some(mount) = measured.mount {
        let _ = write!(
            out,
            "path_write = {}\npath_read = {}\n",
            rate(mount.write, "4 tasks through the mount, fsync counted"),
            rate(mount.read, "4 tasks through the mount"),
        );
    }
}

fn adapters(out: &mut String, measured: &Measured) {
    let mut adapter = |name: &str, port: String, app: Option<String>| {
        let _ = write!(
            out,
            "\n[[adapter]]\nname = \"{name}\"\ndescription = \"{name}\"\nkind = \"lan\"\nports = {}\n\
             port_rate = {port}\n",
            number(1.0, "one interface"),
        );
        if let Some(app) = app {
            let _ = writeln!(out, "app_rate = {app}");
        }
    };
    let how = "4 TCP connections over loopback";
    adapter("this-loopback", rate(measured.loopback, how), None);
    for (name, bits) in &measured.interfaces {
        // No interface carries more than the network stack does without any wire.
        let wire = rate(bits / 8.0, &format!("/sys/class/net/{name}/speed"));
        adapter(&format!("this-{name}"), wire, Some(rate(measured.loopback, how)));
    }
}

/// The design of `strake up` on this machine.
pub fn design_text(measured: &Measured, code: &str, block_size: &str) -> String {
    let disk = measured.slowest().unwrap_or(0);
    format!(
        "title = \"Strake on this machine\"\n\
         notes = \"strake plan calibrate; one building block is this machine with its devices\"\n\n\
         [[tier]]\nname = \"data\"\nblocks = 1\n\n[tier.storage]\nenclosure = \"this-machine\"\n\
         per_block = 1\ndisk = \"this-disk-{disk}\"\ncode = \"{code}\"\nblock_size = \"{block_size}\"\n\
         strips_share_disks = true\n\n\
         [tier.servers]\nmodel = \"this-machine\"\nper_block = 1\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design::Design;
    use crate::evaluate::evaluate;
    use crate::library::Library;
    use crate::stage::Metric;

    fn disk(device: u64, write: f64, random_2m: f64) -> DiskRates {
        DiskRates {
            device,
            capacity: 1e12,
            write: write * MIB,
            read: 2.0 * write * MIB,
            random_2m: random_2m * MIB,
            seek: 0.001,
            first_mib: 0.002,
            iops_write: 9000.0,
            iops_read: 18_000.0,
            direct: true,
        }
    }

    fn evaluated(measured: &Measured) -> crate::evaluate::Evaluation {
        let mut library = Library::built_in();
        library.add("calibrated.toml", &library_text(measured)).unwrap();
        library.check().unwrap();
        let design = Design::parse("design", &design_text(measured, "4+2p", "4M")).unwrap();
        let evaluation = evaluate(&design.resolve(&library).unwrap());
        evaluation.check();
        evaluation
    }

    #[test]
    fn the_prediction_follows_from_the_devices_and_the_code() {
        let mut measured = Measured { loopback: 1e9, cores: 2, ..Measured::default() };
        assert!(measured.add_disk(disk(1, 600.0, 600.0)));
        assert!(!measured.add_disk(disk(1, 500.0, 500.0)), "the same device again");
        let evaluation = evaluated(&measured);
        // Two thirds of what the one device writes is data; reads see all of it.
        assert!((evaluation.rate(Metric::Write) / MIB - 400.0).abs() < 0.1);
        assert!((evaluation.rate(Metric::Read) / MIB - 1200.0).abs() < 0.1);
    }

    #[test]
    fn the_software_path_gates_fast_disks() {
        let mut measured = Measured { loopback: 1e9, cores: 2, ..Measured::default() };
        measured.add_disk(disk(1, 3000.0, 3000.0));
        measured.mount = Some(MountRates { write: 700.0 * MIB, read: 900.0 * MIB });
        let evaluation = evaluated(&measured);
        assert!((evaluation.rate(Metric::Write) / MIB - 700.0).abs() < 0.1);
        assert_eq!(evaluation.tiers[0].rate(Metric::Read).bottleneck, "server software path");
    }

    #[test]
    fn the_slowest_device_stands_for_all_and_odd_figures_still_fit_the_schema() {
        let mut measured = Measured { loopback: 1e9, cores: 2, ..Measured::default() };
        measured.add_disk(disk(1, 600.0, 5000.0));
        measured.add_disk(disk(2, 100.0, 75.0));
        measured.interfaces = vec![("eth0".into(), 1e9)];
        let evaluation = evaluated(&measured);
        assert_eq!(evaluation.inventory.disks.value, 2.0);
        assert!(evaluation.rate(Metric::Write) < 2.0 * 100.0 * MIB);
    }
}
