//! Designs that once got wrong answers, with values computed by hand.
//!
//! Each test names the rule, does the arithmetic in its own words, and compares. The designs are
//! the examples whose names begin with `audit`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use strake_plan::design::{Design, FailureGroup};
use strake_plan::evaluate::{Evaluation, evaluate};
use strake_plan::library::Library;
use strake_plan::loss::LossEvaluation;
use strake_plan::stage::Metric::{self, Read, Write};
use strake_plan::tune::{Wishes, tune};

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;

fn example(name: &str) -> Design {
    let path = format!("{}/../../docs/plan/examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    Design::read(path.as_ref()).unwrap()
}

fn evaluated(design: &Design) -> Evaluation {
    let library = Library::built_in();
    let evaluation = evaluate(&design.resolve(&library).unwrap());
    evaluation.check();
    evaluation
}

fn rate(evaluation: &Evaluation, metric: Metric) -> f64 {
    evaluation.tiers[0].rate(metric).total.value
}

fn loss<'a>(evaluation: &'a Evaluation, of: &str) -> &'a LossEvaluation {
    evaluation.tiers[0].losses.iter().find(|loss| loss.lost == of).unwrap()
}

#[track_caller]
fn close(ours: f64, by_hand: f64) {
    assert!((ours / by_hand - 1.0).abs() < 1e-9, "{ours} is not {by_hand}");
}

#[test]
fn a_code_wider_than_its_disks_survives_fewer_losses_and_is_an_error() {
    let mut design = example("audit-01-four-disks");
    let four = evaluated(&design);
    // Six strips on four disks: two share one, and two strips are all that 4+2p can lose.
    assert!(four.broken());
    let disk = loss(&four, "one disk");
    assert!(disk.data.contains("no further disk may go (2 of a stripe's strips each)"), "{disk:?}");
    assert!(!disk.at_least.is_empty(), "one disk may go");

    design.tier[0].storage.code = "8+3p".into();
    let wide = evaluated(&design);
    // Eleven strips on four disks: three share one.
    assert!(wide.broken());
    assert!(loss(&wide, "one disk").data.contains("no further disk may go (3"));

    design.tier[0].storage.code = "8+2p".into();
    let lost = evaluated(&design);
    // Ten strips on four disks: three share one, and 8+2p can lose two.
    let disk = loss(&lost, "one disk");
    assert!(disk.data.starts_with("offline") && disk.at_least.is_empty(), "{disk:?}");
    assert!(lost.warnings.iter().any(|warning| warning.rule == "server-loss-not-tolerated"));
    close(disk.offline, lost.usable.value);

    design.tier[0].storage.code = "4+2p".into();
    design.tier[0].blocks = 6;
    let enough = evaluated(&design);
    assert!(!enough.broken());
    assert!(loss(&enough, "one disk").data.contains("one more disk may go"));
    assert!(loss(&enough, "one server").data.contains("one more server may go"));

    design.tier[0].storage.strips_share_disks = true;
    design.tier[0].blocks = 4;
    let accepted = evaluated(&design);
    assert!(!accepted.broken());
    assert!(accepted.warnings.iter().any(|warning| warning.rule == "strips-share-disks"));
}

#[test]
fn a_server_whose_loss_takes_data_offline_has_no_rate() {
    let mut design = example("audit-05-server-bus");
    assert_eq!(loss(&evaluated(&design), "one server").at_least.len(), 4);
    design.tier[0].servers.as_mut().unwrap().per_block = 1;
    let alone = evaluated(&design);
    let server = loss(&alone, "one server");
    assert!(server.at_least.is_empty() && server.at_most.is_empty(), "{server:?}");
    close(server.offline, alone.usable.value);
    assert!(alone.warnings.iter().any(|warning| warning.rule == "one-server"));
}

#[test]
fn an_enclosure_of_a_declustered_pair_is_one_of_several() {
    let mut design = example("audit-02-gss24");
    let three = evaluated(&design);
    // 232 disks less four of spare space; eight of eleven strips are data.
    close(three.usable.value, 228.0 * 2e12 * 8.0 / 11.0);
    assert_eq!(three.inventory.enclosures.value, 4.0);
    let text = strake_plan::text::render(&three, false);
    assert!(text.contains("232 disks, 4 enclosures, 2 servers\n"), "{text}");
    assert!(text.contains("24 storage on servers, whose cables come with"), "{text}");
    // Four enclosures hold three strips each; 8+3p can lose three.
    let enclosure = loss(&three, "one enclosure");
    assert!(enclosure.data.starts_with("all there; no further enclosure"), "{enclosure:?}");
    // 58 of 232 disks go with it.
    let strip = MIB;
    let positioning = 2.0 / 75.0 - 2.0 / 100.0;
    let disk = strip / (positioning + 1.0 / 100.0);
    close(enclosure.at_least[1].value, (174.0 * disk).min(2.0 * 2.0 * 5600.0 * MIB));
    assert!(three.tiers[0].losses.iter().all(|loss| loss.lost != "one RAID controller"));

    design.tier[0].storage.code = "8+2p".into();
    let two = evaluated(&design);
    let enclosure = loss(&two, "one enclosure");
    close(enclosure.offline, 228.0 * 2e12 * 0.8);
    close(enclosure.offline, two.usable.value);
    assert!(enclosure.at_least.is_empty());
}

#[test]
fn canisters_are_servers_not_controllers_as_well() {
    let evaluation = evaluated(&example("ess3000"));
    let losses: Vec<&str> = evaluation.tiers[0].losses.iter().map(|l| l.lost.as_str()).collect();
    assert_eq!(
        losses,
        ["one disk", "one disk, while it is rebuilt", "one server", "one enclosure", "one rack"]
    );
    // One of two canisters carries half of the 42 GB/s that both are specified with.
    close(loss(&evaluation, "one server").at_least[1].value, 21.0 * GIB);
    // Everything is in one enclosure.
    close(loss(&evaluation, "one enclosure").offline, evaluation.usable.value);
}

#[test]
fn a_rebuild_passes_the_network_of_the_node_that_rebuilds() {
    let mut design = example("audit-03-rebuild");
    // Strake rebuilds on one node. It takes in four strips for each that it writes, within a
    // quarter of its adapter.
    let slow = evaluated(&design).tiers[0].rebuild.value;
    close(slow, 7.68e12 * 4.0 / (725.0 * MIB * 0.25));

    let servers = design.tier[0].servers.as_mut().unwrap();
    servers.lan = Some("100gbe".into());
    servers.lan_per_server = 2;
    let fast = evaluated(&design);
    close(fast.tiers[0].rebuild.value, 7.68e12 * 4.0 / (2.0 * 12.5e9 * 0.25));
    close(fast.tiers[0].rebuild_unit.as_ref().unwrap().value, 4.0 * 4915.2);

    // Where all servers take part, the disks gate: 23 others read four and write one.
    design.filesystem = Some("gpfs".into());
    let servers = design.tier[0].servers.as_mut().unwrap();
    servers.lan_per_server = 2;
    let each = 4.0 / (3000.0 * MIB) + 1.0 / (1800.0 * MIB);
    close(evaluated(&design).tiers[0].rebuild.value, 7.68e12 / (23.0 * 0.25 / each));
}

#[test]
fn small_blocks_are_gated_by_operations() {
    let mut design = example("audit-04-small-blocks");
    let small = evaluated(&design);
    // A block of 4 KiB makes strips of 1 KiB; 192 disks do 50,000 writes and 400,000 reads each.
    close(rate(&small, Write), 192.0 * 50_000.0 * KIB * 4.0 / 6.0);
    close(rate(&small, Read), 192.0 * 400_000.0 * KIB);

    // Rotating disks without a rate at 2 MiB position for as long as a random read takes.
    design.tier[0].storage.enclosure = "bays-12".into();
    design.tier[0].storage.disk = "sas-15k-300gb".into();
    design.tier[0].storage.block_size = Some(strake_plan::unit::Capacity(256.0 * KIB));
    design.tier[0].servers.as_mut().unwrap().model = "disk-server".into();
    let seeks = evaluated(&design);
    let positioning = 1.0 / 250.0 - 4.0 * KIB / (150.0 * MIB);
    let disk = 64.0 * KIB / (positioning + 64.0 * KIB / (150.0 * MIB));
    close(rate(&seeks, Read), 96.0 * disk);
}

#[test]
fn a_raid_controller_reads_in_order_and_sorts_what_its_cache_gathers() {
    let mut design = example("audit-05-server-bus");
    design.tier[0].servers = None;
    let strips = |design: &mut Design, block: f64, cache, metric| {
        design.tier[0].storage.block_size = Some(strake_plan::unit::Capacity(block));
        design.tier[0].storage.write_cache = Some(cache);
        rate(&evaluated(design), metric)
    };
    let (mirrored, off) =
        (strake_plan::library::WriteCache::Mirrored, strake_plan::library::WriteCache::Off);
    // 300 disks do 100 random reads a second each, and no more reads of 128 KiB than of 4 KiB.
    close(strips(&mut design, MIB, mirrored, Read), 300.0 * 100.0 * 128.0 * KIB);
    // A strip of 512 KiB takes 5 ms, and its way there 6.7 ms: less than 100 of them anyway.
    let way = 2.0 / 75.0 - 2.0 / 100.0;
    let strip = 512.0 * KIB / (way + 0.5 / 100.0);
    close(strips(&mut design, 4.0 * MIB, mirrored, Read), (300.0 * strip).min(5.0 * 2.0 * GIB));
    // Gathered writes are sorted, so their ways stay short. Eight of ten disks hold data.
    let sorted = 128.0 * KIB / (way + 0.125 / 100.0);
    close(strips(&mut design, MIB, mirrored, Write), 240.0 * sorted);
    assert!(strips(&mut design, MIB, off, Write) < 240.0 * 100.0 * 128.0 * KIB);
}

#[test]
fn each_byte_crosses_the_servers_bus_from_the_network_and_to_the_disks() {
    let mut design = example("audit-05-server-bus");
    let evaluation = evaluated(&design);
    // Two servers x 10 GB/s x 70 %, in and out.
    for metric in [Write, Read] {
        close(rate(&evaluation, metric), 7.0 * GIB);
        assert_eq!(evaluation.tiers[0].rate(metric).bottleneck, "server bus");
    }
    design = example("nvme-cluster");
    let clients = evaluated(&design);
    // Parity comes over the network as well: 60 GB/s x 70 % / (1.5 + 1.5), eight servers.
    close(rate(&clients, Write), 8.0 * 60.0 * GIB * 0.7 / 3.0);
    design.tier[0].storage.parity = Some(strake_plan::library::Parity::Server);
    let servers = evaluated(&design);
    // Where the servers compute the redundancy it crosses towards the disks only: 1 + 1.5.
    let bus = servers.tiers[0].rate(Write).balance.iter().find(|s| s.stage == "server bus");
    close(bus.unwrap().capacity, 8.0 * 60.0 * GIB * 0.7 / 2.5);
}

#[test]
fn internal_raid_goes_with_its_server() {
    let mut design = example("audit-07-raid-inside");
    let evaluation = evaluated(&design);
    let server = loss(&evaluation, "one server");
    // Two servers with two arrays of ten data disks each: half of the data is behind one of them.
    close(server.offline, 2.0 * 10.0 * 2e12);
    assert!(server.at_least.is_empty(), "{server:?}");
    assert!(evaluation.warnings.iter().any(|warning| warning.rule == "disks-inside-servers"));
    // RAID adapters inside the servers are no enclosures.
    let text = strake_plan::text::render(&evaluation, false);
    assert!(text.contains("48 disks in 4 arrays, 4 trays, 2 servers\n"), "{text}");
    assert!(evaluation.tiers[0].losses.iter().all(|loss| loss.lost != "one RAID controller"));
    // A slot of PCI Express 2.0 x8 carries 32 Gb/s, however fast the adapter is.
    let network = evaluation.tiers[0].rate(Read).balance.iter();
    close(network.clone().find(|s| s.stage == "server network").unwrap().capacity, 2.0 * 4e9);
    assert!(evaluation.warnings.iter().any(|warning| warning.rule == "adapter-beyond-slot"));

    let library = Library::built_in();
    let system = design.resolve(&library).unwrap();
    let settings = tune(&system, Wishes::default());
    let text = strake_plan::tune::render("", &settings);
    for wrong in ["controller B", "LTG", "take turns", "mirrored or off"] {
        assert!(!text.contains(wrong), "{wrong}: {text}");
    }
    assert!(text.contains("/dev/LUN0:server1::::") && text.contains("nsdMaxWorkerThreads = 7"));
    // An AIX server has no /sys, and a Linux server no volume group.
    design = example("p690-x335");
    let system = design.resolve(&library).unwrap();
    let text = strake_plan::tune::render("", &tune(&system, Wishes::default()));
    assert!(text.contains("LTG") && !text.contains("/sys/block"), "{text}");
}

#[test]
fn infiniband_is_what_the_library_says_and_not_what_a_name_begins_with() {
    let mut library = Library::built_in();
    let mut fast = library.adapters["ib-fdr"].clone();
    fast.name = "fast".into();
    let mut ibis = library.adapters["100gbe"].clone();
    ibis.name = "ibis-100".into();
    library.adapters.insert("fast".into(), fast);
    library.adapters.insert("ibis-100".into(), ibis);
    for (name, rdma) in [("fast", true), ("ibis-100", false)] {
        let mut design = example("audit-02-gss24");
        design.tier[0].servers.as_mut().unwrap().lan = Some(name.into());
        let settings = tune(&design.resolve(&library).unwrap(), Wishes::default());
        assert_eq!(settings.iter().any(|setting| setting.name == "verbsRdma"), rdma, "{name}");
        assert_eq!(settings.iter().any(|setting| setting.name == "MTU"), !rdma, "{name}");
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    type Change = fn(&mut Design);
    let cases: [(&str, &str, Change); 9] = [
        ("audit-05-server-bus", "takes at most 3 adapters, not 51", |d| {
            d.tier[0].servers.as_mut().unwrap().lan_per_server = 50;
        }),
        ("audit-05-server-bus", "give them a storage adapter", |d| {
            d.tier[0].servers.as_mut().unwrap().hba = None;
        }),
        ("audit-05-server-bus", "has Sas ports", |d| {
            d.tier[0].servers.as_mut().unwrap().hba = Some("fc8-dual".into());
        }),
        ("audit-05-server-bus", "mirror in pairs", |d| d.tier[0].storage.code = "3x".into()),
        ("audit-05-server-bus", "one or two parity", |d| d.tier[0].storage.code = "8+3p".into()),
        ("audit-05-server-bus", "set spares = 0", |d| d.tier[0].storage.spares = 2),
        ("audit-02-gss24", "bring 2 servers", |d| {
            d.tier[0].servers.as_mut().unwrap().per_block = 3;
        }),
        ("audit-08-two-tiers", "leaves nothing of the 42U", |d| d.rack.reserve_units = 42),
        ("audit-08-two-tiers", "hold no disk", |d| {
            d.tier[0].storage.disks_per_tray = Some(vec![0]);
        }),
    ];
    let library = Library::built_in();
    for (name, says, change) in cases {
        let mut design = example(name);
        assert!(design.resolve(&library).is_ok(), "{name}");
        change(&mut design);
        let error = design.resolve(&library).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(says), "{says}: {error}");
    }
}

#[test]
fn tiers_share_racks() {
    let mut design = example("audit-08-two-tiers");
    // Six blocks of 2U and six of 2U: 24U, with 36U free.
    assert_eq!(evaluated(&design).inventory.racks.value, 1.0);
    design.tier[0].blocks = 20;
    // 40U and 12U: eighteen blocks fill the first rack, two begin the second, which has room.
    assert_eq!(evaluated(&design).inventory.racks.value, 2.0);
    design.rack.reserve_units = 41;
    assert!(evaluated(&design).inventory.racks.value > 2.0, "blocks higher than a rack are cut");
}

#[test]
fn small_operations_are_gated_by_waiting_clients_and_processors() {
    let mut design = example("audit-10-operations");
    let evaluation = evaluated(&design);
    // A read: 65.4 µs at the client, two ways of 25 µs, 10 µs at the server, 100 µs at the disk.
    let read = 65.4e-6 + 2.0 * 25e-6 + 10e-6 + 100e-6;
    let write = 65.4e-6 + 2.0 * 25e-6 + 10e-6 + 30e-6;
    let latency: Vec<f64> = evaluation.tiers[0].latency.iter().map(|time| time.value).collect();
    close(latency[0], read);
    close(latency[1], write);
    // Four clients with 64 operations on their way each.
    close(rate(&evaluation, Metric::IopsRead), 256.0 / read);
    assert_eq!(evaluation.tiers[0].rate(Metric::IopsRead).bottleneck, "clients' waiting");
    // With more on their way, 192 cores of the clients are the limit: 65.4 µs for each.
    design.clients.as_mut().unwrap().queue_depth = Some(10_000);
    let deep = evaluated(&design);
    close(rate(&deep, Metric::IopsRead), 192.0 / 65.4e-6);
    assert_eq!(deep.tiers[0].rate(Metric::IopsRead).bottleneck, "client processors");
    // Without named clients, the servers: eight of 32 cores, 10 µs for each of three copies.
    design.clients = None;
    let servers = evaluated(&design);
    let balance = &servers.tiers[0].rate(Metric::IopsWrite).balance;
    let processors = balance.iter().find(|stage| stage.stage == "server processors").unwrap();
    close(processors.capacity, 256.0 / 10e-6 / 3.0);
}

#[test]
fn copies_in_failure_groups_survive_a_site_and_cost_half_of_everything_written() {
    let mut design = example("audit-11-two-sites");
    let two = evaluated(&design);
    // Two blocks of 3 x 60 disks, eight of ten hold data, and each file is there twice.
    close(two.usable.value, 360.0 * 0.8 * 2e12 / 2.0);
    // The metadata's own disks are no room for files; they have 2 x 24 x 400 GB / 2 / 2.
    close(two.tiers[1].usable.value, 48.0 * 400e9 / 4.0);
    assert!(two.warnings.iter().all(|warning| warning.rule != "metadata-disks-too-small"));
    // 2 x 4.8 GB/s, written twice; reads come from either.
    close(rate(&two, Write), 4.8 * GIB);
    close(rate(&two, Read), 12.0 * GIB);
    for of in ["one site", "one rack", "one enclosure with its trays"] {
        let lost = loss(&two, of);
        assert_eq!(lost.offline, 0.0, "{lost:?}");
        close(lost.at_least[1].value, 6.0 * GIB);
    }
    // Kept apart by servers alone, both copies may stand in one site.
    design.tier[0].failure_group = None;
    let site = evaluated(&design);
    close(loss(&site, "one site").offline, two.usable.value / 2.0);
    design.tier[0].replicas = 1;
    let single = evaluated(&design);
    close(loss(&single, "one enclosure with its trays").offline, 60.0 * 0.8 * 2e12);
    // Three enclosures of a block and two blocks: the sixth part of ten thousand years, and RAID.
    let reliability = single.tiers[0].reliability.as_ref().unwrap();
    let modes = reliability.mttdl.inputs();
    let year = strake_plan::reliability::YEAR;
    close(modes[1].value, 10_000.0 / 6.0 * year);
    let lasts = |e: &Evaluation| e.tiers[0].reliability.as_ref().unwrap().mttdl.value;
    assert!(lasts(&two) > 1000.0 * lasts(&single), "copies add to RAID");
    // 1.5 % of 288 TB, on four SSDs.
    design.tier[1].storage.disks_per_tray = Some(vec![4]);
    let small = evaluated(&design);
    assert!(small.warnings.iter().any(|warning| warning.rule == "metadata-disks-too-small"));
    design.tier[0].replicas = 3;
    assert!(design.resolve(&Library::built_in()).is_err(), "three copies need three blocks");
}

#[test]
fn strips_kept_apart_by_racks_survive_a_rack() {
    let mut design = example("nvme-cluster");
    // Six racks of one server each: 40U of each rack are kept for others.
    design.tier[0].blocks = 6;
    design.rack.reserve_units = 40;
    assert!(loss(&evaluated(&design), "one rack").offline == 0.0);
    // Three racks of two servers: two strips of each stripe, which is what 4+2p can lose.
    design.rack.reserve_units = 38;
    design.tier[0].failure_group = Some(FailureGroup::Rack);
    let two = evaluated(&design);
    assert_eq!(two.inventory.racks.value, 3.0);
    close(loss(&two, "one rack").at_least[1].value, rate(&two, Read) * 4.0 / 6.0);
    // Two racks of three: three strips.
    design.rack.reserve_units = 36;
    let three = evaluated(&design);
    close(loss(&three, "one rack").offline, three.usable.value);
}

#[test]
fn power_heat_and_weight_are_sums_of_parts() {
    let evaluation = evaluated(&example("audit-03-rebuild"));
    let room = &evaluation.inventory.room;
    // Six servers of 700 W with one adapter of 15 W and four disks of 18 W each.
    close(room.power.as_ref().unwrap().value, 6.0 * (700.0 + 15.0 + 4.0 * 18.0));
    close(room.heat.as_ref().unwrap().value, 6.0 * 787.0 * 3.41214163);
    close(room.weight.as_ref().unwrap().value, 6.0 * (30.0 + 0.2 + 4.0 * 0.2));
    assert!(room.without_power.is_empty() && room.without_weight.is_empty());
}

#[test]
fn mixes_are_gated_by_waiting_by_stages_and_by_names() {
    let mut design = example("audit-12-mix");
    let evaluation = evaluated(&design);
    let [database, checkpoint, build] = &evaluation.mixes[..] else { panic!("three mixes") };
    // Alone: 65.4 µs, 10 µs and the network for each turn; 12 KiB more over disk and adapter. A
    // write reads first, and sends half as much again.
    let more = 12.0 * KIB;
    let read = 65.4e-6 + 50e-6 + 10e-6 + 100e-6 + more / (3000.0 * MIB) + more / 12.5e9;
    let write = 65.4e-6 + 100e-6 + 20e-6 + 130e-6 + more / (1800.0 * MIB) + 1.5 * more / 12.5e9;
    close(database.alone, 0.7 * read + 0.3 * write);
    close(database.rate, 512.0 / database.alone);
    assert_eq!((database.gate.as_str(), database.enough), ("waiting for answers", Some(true)));
    close(database.time, database.alone);
    // The bus of eight servers, which parity crosses with the data; the clients' adapters carry
    // 16 x 12.5 GB/s x 4/6.
    close(checkpoint.bytes, 8.0 * 60.0 * GIB * 0.7 / 3.0);
    assert_eq!(checkpoint.gate, "server bus");
    // Half of all operations are on names, and one node does 38,937 of those.
    close(build.most.value, 2.0 * 38_937.0);
    assert_eq!(build.gate, "metadata");

    // Deep queues of 4 KiB: 192 disks read 400,000 times, and write 50,000 times, six for each.
    design.mix[0].size = strake_plan::unit::Capacity(4.0 * KIB);
    design.mix[0].queue_depth = 1_000_000;
    design.clients.as_mut().unwrap().count = 1000;
    let deep = evaluated(&design);
    let (reads, writes) = (192.0 * 400_000.0, 192.0 * 50_000.0 / 6.0);
    close(deep.mixes[0].rate, 1.0 / (0.7 / reads + 0.3 / writes));
    close(deep.mixes[0].time, 1e6 / deep.mixes[0].rate);
    assert_eq!(deep.mixes[0].gate, "disks");
    // Seven of eight servers are left.
    let (name, left) = &deep.mixes[0].degraded[1];
    assert_eq!(name, "one server");
    close(*left, deep.mixes[0].rate * 7.0 / 8.0);
    let (name, left) = &deep.mixes[0].degraded[0];
    assert_eq!(name, "one disk, while it is rebuilt");
    assert!(*left < 0.76 * deep.mixes[0].rate, "a quarter of the disks' time is the rebuild's");
}

#[test]
fn enclosures_that_are_destroyed_are_a_way_to_lose_data() {
    let mut design = example("jbod-cluster");
    let twelve = evaluated(&design);
    // Twelve enclosures hold one strip each of 8+3p: three may go while the first is rebuilt.
    let reliability = twelve.tiers[0].reliability.as_ref().unwrap();
    let enclosures = &reliability.mttdl.inputs()[1];
    let (n, rate) = (12.0, 0.0001 / strake_plan::reliability::YEAR);
    let time = twelve.tiers[0].rebuild_unit.as_ref().unwrap().value;
    let closed = 1.0 / (n * (n - 1.0) * (n - 2.0) * (n - 3.0) * rate.powi(4) * time.powi(3));
    assert!((enclosures.value / closed - 1.0).abs() < 0.01, "{} {closed}", enclosures.value);
    close(reliability.keep_free.as_ref().unwrap().value, twelve.usable.value / 12.0);
    // Two enclosures hold six strips each, so none may go.
    design.tier[0].blocks = 1;
    let two = evaluated(&design);
    let enclosures = &two.tiers[0].reliability.as_ref().unwrap().mttdl.inputs()[1];
    close(enclosures.value, 1.0 / (2.0 * rate));
}
