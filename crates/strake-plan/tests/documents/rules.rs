//! The documents' rules: stripe law and RAID 5 write penalty, transfer sizes, threads, buffers,
//! XFS geometry, disk-to-array tables.

use crate::row::{Group, Row, Verdict, example_design};
use strake_plan::library::Library;
use strake_plan::tune::{Setting, StripeFit, Wishes, disk_map, tune};
use strake_plan::unit::{Capacity, GIB, KIB, MIB};

/// All rows of these rules.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = stripe_law().rows;
    rows.extend(settings().rows);
    rows.extend(nfs().rows);
    rows
}

const K: u64 = 1024;

fn stripe_law() -> Group {
    let mut group = Group::new(
        "Block size, segment size, RAID 5 write penalty",
        "p690-x335, Appendix A; dcs3700, Phase 1 tuning parameters, item 4",
    );
    let fit = StripeFit::of(1024 * K, 4, 256 * K, 1024 * K);
    group.agrees(
        "4+P, LTG 1 MB, segment 256 KB, block 1 MB: Q",
        ("1", ""),
        fit.stripes_per_block.unwrap() as f64,
    );
    group.agrees(
        "4+P, LTG 1 MB, segment 256 KB, block 1 MB: J",
        ("1", ""),
        fit.stripes_per_transfer.unwrap() as f64,
    );
    let fit = StripeFit::of(1024 * K, 4, 32 * K, 128 * K);
    group.agrees(
        "4+P, LTG 128 KB, segment 32 KB, block 1 MB: Q",
        ("8", ""),
        fit.stripes_per_block.unwrap() as f64,
    );
    group.agrees(
        "4+P, LTG 128 KB, segment 32 KB, block 1 MB: J",
        ("1", ""),
        fit.stripes_per_transfer.unwrap() as f64,
    );
    let penalty =
        |unit: u64| f64::from(u8::from(StripeFit::of(unit, 4, 256 * K, 0).reads_before_writing()));
    group.agrees(
        "writing 600 KB on a stripe of 1 MB reads first (1 = yes)",
        ("1", ""),
        penalty(600 * K),
    );
    group.agrees(
        "writing 1 MB on a stripe of 1 MB reads first (0 = no)",
        ("0", ""),
        penalty(1024 * K),
    );
    for (block, printed) in [(4.0 * MIB, "512"), (MIB, "128"), (0.25 * MIB, "32")] {
        let settings = settings_of("solution-2a", Some(block), Wishes::default());
        let segment = named(&settings, "segment size");
        let kilobytes: f64 = segment.value.trim_end_matches('K').parse().unwrap();
        group.agrees(
            format!("8+2P, block {} KB: segment", block / KIB),
            (printed, "KB"),
            kilobytes,
        );
    }
    let stripe = StripeFit::of((16.0 * MIB) as u64, 8, 2048 * K, 0);
    assert!(!stripe.reads_before_writing());
    group
}

fn settings_of(name: &str, block: Option<f64>, wishes: Wishes) -> Vec<Setting> {
    let mut design = example_design(name);
    if let Some(block) = block {
        design.tier[0].storage.block_size = Some(Capacity(block));
    }
    let library = Library::built_in();
    tune(&design.resolve(&library).unwrap(), wishes)
}

fn named<'a>(settings: &'a [Setting], name: &str) -> &'a Setting {
    settings.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name}"))
}

fn number(settings: &[Setting], name: &str) -> f64 {
    named(settings, name).value.parse().unwrap()
}

fn settings() -> Group {
    let mut group = Group::new(
        "Settings of servers and clients",
        "dcs3700, Phase 1; mmchconfig parameters; Effectively using 2xTbE; sas-ess3000, configuration",
    );
    let wishes = Wishes { client_rate: Some(1.5 * GIB), ..Wishes::default() };
    let settings = settings_of("solution-2a", None, wishes);
    group.agrees(
        "max_sectors_kb = read_ahead_kb for 4 MB blocks",
        ("4096", "KB"),
        number(&settings, "max_sectors_kb, read_ahead_kb"),
    );
    group.row(
        "maxMBpS for 1.5 GB/s per node",
        ("3000", "MB/s"),
        number(&settings, "maxMBpS"),
        Verdict::Marked("twice the wanted rate; the guide rounds 2 x 1.5 GB/s to 3000"),
    );
    let ess = settings_of("ess3000", None, Wishes::default());
    group.row(
        "maxMBpS for one 100 GbE port",
        ("24000", "MB/s"),
        number(&ess, "maxMBpS"),
        Verdict::Marked(
            "2 x 100 Gb/s, which the document rounds; it sets 24000 on the appliance and \
                         10000 on the clients",
        ),
    );
    let two_trays = {
        let mut design = example_design("solution-1a");
        design.tier[0].storage.trays = 1;
        let library = Library::built_in();
        tune(&design.resolve(&library).unwrap(), Wishes::default())
    };
    group.row(
        "nsdMaxWorkerThreads, 12 LUNs",
        ("144", ""),
        number(&two_trays, "nsdMaxWorkerThreads"),
        Verdict::Marked("more than 3 x LUNs; the guide's note 5 says 144 is probably too high"),
    );
    let ethernet = settings_of("solution-1a", None, Wishes::default());
    let held = "a setting that the planner repeats";
    group.input("MTU", ("9000", "B"), number(&ethernet, "MTU"), held);
    let command = &named(&ess, "MTU").commands[1];
    let mtu = command.rsplit(' ').next().unwrap().parse().unwrap();
    group.input("MTU of the 100 GbE switch ports", ("9216", "B"), mtu, held);
    assert!(named(&ethernet, "bonding").value.contains("balance-rr"));
    assert!(named(&ess, "bonding").value.contains("mode=4,xmit_hash_policy=layer3+4"));
    group
}

fn nfs() -> Group {
    let mut group = Group::new(
        "Settings of the NFS appliance",
        "dell-nss, Performance optimizations; Preparing the file system for export",
    );
    for (name, printed) in [("small", "10"), ("medium", "20")] {
        let settings = settings_of(&format!("nss-{name}"), None, Wishes::default());
        let geometry = &named(&settings, "mkfs.xfs").value;
        assert!(geometry.starts_with("su=512k,"), "{geometry}");
        let width = geometry.rsplit('=').next().unwrap().parse().unwrap();
        group.agrees(format!("{name}: mkfs.xfs sw"), (printed, ""), width);
    }
    let large = settings_of("nss-large", None, Wishes::default());
    let command = &named(&large, "LVM and mkfs.xfs").commands[2];
    assert_eq!(command, "lvcreate -i 2 -I 1024 -l 100%FREE VGName");
    let stripe = command.split("-I ").nth(1).unwrap().split(' ').next().unwrap();
    group.agrees("large: LVM stripe", ("1024", "KB"), stripe.parse().unwrap());
    let held = "a setting that the planner repeats";
    group.input("nfsd threads", ("256", ""), number(&large, "nfsd threads"), held);
    group.agrees(
        "tcp_rmem for rsize 1048576",
        ("2621440", "B"),
        number(&large, "tcp_rmem of the clients"),
    );
    group
}

/// One drawer of a layout as the guide prints it.
fn drawer(text: &str) -> Vec<u64> {
    text.split(' ').map(|cell| cell.trim_start_matches(['A', 'B']).parse().unwrap()).collect()
}

#[test]
fn raid_6_layout_is_the_printed_table() {
    let phase_1 = drawer("1 1 2 2 3 3 4 4 5 5 6 6");
    let tray_0 = drawer("A1 A1 B2 B2 A3 A3 B4 B4 A5 A5 B6 B6");
    let tray_1 = drawer("A7 A7 B8 B8 A9 A9 B10 B10 A11 A11 B12 B12");
    assert_eq!(disk_map(10, 1).unwrap(), vec![phase_1; 5]);
    assert_eq!(disk_map(10, 1).unwrap(), vec![tray_0; 5]);
    assert_eq!(disk_map(10, 7).unwrap(), vec![tray_1; 5]);
}

#[test]
fn raid_5_layout_is_the_printed_table() {
    let odd = drawer("A1 B2 A3 B4 A5 B6 A7 B8 A9 B10 A11 B12");
    let even = drawer("B2 A1 B4 A3 B6 A5 B8 A7 B10 A9 B12 A11");
    let tray_0 = vec![odd.clone(), even.clone(), odd.clone(), even, odd];
    assert_eq!(disk_map(5, 1).unwrap(), tray_0);
    let odd = drawer("A13 B14 A15 B16 A17 B18 A19 B20 A21 B22 A23 B24");
    let even = drawer("B14 A13 B16 A15 B18 A17 B20 A19 B22 A21 B24 A23");
    let tray_1 = vec![odd.clone(), even.clone(), odd.clone(), even, odd];
    assert_eq!(disk_map(5, 13).unwrap(), tray_1);
}

#[test]
fn every_array_has_its_disks_and_uses_even_and_odd_slots_alike() {
    for width in [5, 10, 15, 20, 30, 60] {
        let Some(map) = disk_map(width, 1) else { panic!("{width}") };
        for array in 1..=60 / width {
            let slots = map.iter().flat_map(|row| {
                row.iter().enumerate().filter(|(_, owner)| **owner == array).map(|(slot, _)| slot)
            });
            let (even, odd): (Vec<usize>, Vec<usize>) = slots.partition(|slot| slot % 2 == 0);
            assert_eq!((even.len() + odd.len()) as u64, width);
            assert!(even.len().abs_diff(odd.len()) <= 5, "width {width}, array {array}");
        }
    }
    assert_eq!(disk_map(0, 1), None);
    assert_eq!(disk_map(12, 1), None, "12 disks do not spread over 5 drawers");
}
