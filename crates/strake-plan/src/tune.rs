//! Settings that follow from a design, as the documents derive them.
//!
//! Each setting says which rule gives it and where the rule is from; `commands` are what to type.
//! Pure: settings are data, `render` turns them into text.

use crate::design::{System, Tier};
use crate::figure::Figure;
use crate::library::{Fabric, Parity, WriteCache};
use crate::stage::{Metric, adapter};
use crate::unit::{KIB, MIB, Unit};
use serde::Serialize;
use strake_proto::limits::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN};

/// Whom a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Strake.
    Strake,
    /// The file system of the documents.
    Gpfs,
    /// RAID controllers.
    Controller,
    /// Linux on the servers.
    Server,
    /// AIX on the servers.
    Aix,
    /// Network on servers, clients and switches.
    Network,
    /// The NFS appliance: XFS, LVM, the NFS server and its clients.
    Nfs,
}

impl Target {
    const ALL: [Target; 7] = [
        Target::Strake,
        Target::Gpfs,
        Target::Controller,
        Target::Server,
        Target::Aix,
        Target::Network,
        Target::Nfs,
    ];

    fn title(self) -> &'static str {
        match self {
            Target::Strake => "Strake",
            Target::Gpfs => "GPFS (the original system)",
            Target::Controller => "RAID controllers",
            Target::Server => "Linux on the servers",
            Target::Aix => "AIX on the servers",
            Target::Network => "Network",
            Target::Nfs => "NFS appliance",
        }
    }
}

/// One setting.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Setting {
    pub target: Target,
    pub tier: String,
    pub name: String,
    pub value: String,
    /// What to type or write into a file.
    pub commands: Vec<String>,
    /// The rule, in words.
    pub why: String,
    pub source: String,
}

/// What the user adds to the design.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// Rate that one client is to reach, bytes per second; else what its adapter carries.
    pub client_rate: Option<f64>,
    /// NFS transfer size; 1 MiB by default.
    pub rsize: Option<f64>,
}

/// How a file system block fits the stripes of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StripeFit {
    /// Whole stripes in a block; none if a block ends inside a stripe.
    pub stripes_per_block: Option<u64>,
    /// Whole stripes in the largest transfer of the logical volume, likewise.
    pub stripes_per_transfer: Option<u64>,
}

impl StripeFit {
    /// block = Q · N · segment and transfer (LTG) = J · N · segment, with whole Q and J.
    pub fn of(block: u64, data_disks: u64, segment: u64, transfer: u64) -> StripeFit {
        let stripe = data_disks * segment;
        let whole = |size: u64| {
            (stripe > 0 && size > 0 && size.is_multiple_of(stripe)).then(|| size / stripe)
        };
        StripeFit { stripes_per_block: whole(block), stripes_per_transfer: whole(transfer) }
    }

    /// Whether writing one block reads first (the RAID 5 write penalty).
    pub fn reads_before_writing(self) -> bool {
        self.stripes_per_block.is_none()
    }
}

/// Arrays of one tray, drawer by drawer: `map[drawer][slot]` is the array's number from 1.
///
/// Five drawers of twelve slots. An array takes as many slots of each drawer as it has disks per
/// drawer; with one disk per drawer neighbouring arrays swap places in every other drawer, so that
/// even and odd slots are used alike.
pub fn disk_map(width: u64, first_array: u64) -> Option<Vec<Vec<u64>>> {
    const DRAWERS: u64 = 5;
    const SLOTS: u64 = 12;
    if width == 0 || !width.is_multiple_of(DRAWERS) || !SLOTS.is_multiple_of(width / DRAWERS) {
        return None;
    }
    let per_drawer = width / DRAWERS;
    let row = |drawer: u64| {
        (0..SLOTS).map(move |slot| {
            let slot = if per_drawer == 1 && drawer % 2 == 1 { slot ^ 1 } else { slot };
            first_array + slot / per_drawer
        })
    };
    Some((0..DRAWERS).map(|drawer| row(drawer).collect()).collect())
}

/// All settings for a design.
pub fn tune(system: &System, wishes: Wishes) -> Vec<Setting> {
    let mut all = Vec::new();
    for tier in &system.tiers {
        let mut add = |setting: Setting| all.push(setting);
        let maker = Maker { tier: &tier.name };
        let pool = page_pool(system, tier, wishes);
        if system.filesystem.name != "xfs" {
            strake(tier, &pool, &maker, &mut add);
        }
        if tier.storage.parity == Parity::Controller {
            controller(tier, &maker, &mut add);
            if runs_aix(tier) {
                transfer_group(tier, &maker, &mut add);
            } else {
                transfer_size(tier, &maker, &mut add);
            }
        }
        match system.filesystem.name.as_str() {
            "xfs" => crate::tune_nfs::nfs(tier, wishes, &maker, &mut add),
            _ => gpfs(tier, &client_rate(system, tier, wishes), &pool, &maker, &mut add),
        }
        network(tier, &maker, &mut add);
    }
    all
}

fn runs_aix(tier: &Tier) -> bool {
    tier.servers.as_ref().is_some_and(|servers| servers.model.os.as_deref() == Some("aix"))
}

/// Makes settings of one tier.
pub(crate) struct Maker<'a> {
    tier: &'a str,
}

impl Maker<'_> {
    pub(crate) fn setting(
        &self,
        target: Target,
        (name, value): (&str, String),
        commands: Vec<String>,
        why: impl Into<String>,
        source: &str,
    ) -> Setting {
        Setting {
            target,
            tier: self.tier.into(),
            name: name.into(),
            value,
            commands,
            why: why.into(),
            source: source.into(),
        }
    }
}

/// A size as commands write it: `4M`, `512K`.
pub(crate) fn short(bytes: f64) -> String {
    if bytes >= MIB && bytes % MIB == 0.0 {
        format!("{}M", bytes / MIB)
    } else {
        format!("{}K", (bytes / KIB).ceil())
    }
}

/// The block that a file system takes whose blocks are powers of two from `min` to `max`: the
/// largest that is no larger than `wanted`. With it, what to add to the reason if that is another
/// size.
fn block_of(wanted: f64, (min, max): (f64, f64), controller: bool) -> (f64, String) {
    let block = (1_u64 << (wanted.clamp(min, max) as u64).ilog2()) as f64;
    if block == wanted {
        return (block, String::new());
    }
    let (from, to) = (short(min), short(max));
    let mut why =
        format!("; blocks are powers of two from {from} to {to}, so {} cannot be", short(wanted));
    if controller {
        why += ", and each write reads first: arrays of 2, 4, 8 or 16 data disks avoid that";
    }
    (block, why)
}

const STRAKE_BLOCKS: (f64, f64) = (BLOCK_SIZE_MIN.0 as f64, BLOCK_SIZE_MAX.0 as f64);
const GPFS_BLOCKS: (f64, f64) = (16.0 * KIB, 16.0 * MIB);

fn strake(tier: &Tier, pool: &Figure, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let storage = &tier.storage;
    let controller = storage.parity == Parity::Controller;
    let (block, other_block) = block_of(storage.block_size, STRAKE_BLOCKS, controller);
    let block = short(block);
    if !controller {
        let disks = storage.disks_per_enclosure() * storage.per_block;
        let code = &storage.code.name;
        let command = format!(
            "strake up --data DIR --mount MNT --nsds {disks} --code {code} --block-size {block}"
        );
        let (commands, no_code) = match code.parse::<strake_proto::Code>() {
            Ok(_) => (vec![command], ""),
            Err(_) => (Vec::new(), "; Strake has no such code"),
        };
        add(make.setting(
            Target::Strake,
            ("code and block size", format!("{code}, {block}")),
            commands,
            format!(
                "the block is cut into the code's data strips; one NSD per disk{no_code}{other_block}"
            ),
            "design",
        ));
    } else {
        // Behind RAID controllers the array is the disk and already carries the redundancy.
        let luns = storage.arrays_per_enclosure() * storage.per_block * tier.blocks;
        add(make.setting(
            Target::Strake,
            ("code and block size", format!("1, {block}")),
            vec![format!(
                "strake up --data DIR --mount MNT --nsds {} --code 1 --block-size {block}",
                luns.max(1)
            )],
            format!("each LUN is one NSD and the controllers hold the redundancy{other_block}"),
            "design",
        ));
    }
    add(make.setting(
        Target::Strake,
        ("page pool", pool.show()),
        vec![format!("strake up … --set pagepool={}", short(pool.value))],
        explain_pool(pool),
        "gpfs-performance: GPFS parameters, prefetchPct 20 %",
    ));
}

/// The smallest pool whose prefetch share holds the blocks in flight at the wanted rate.
fn page_pool(system: &System, tier: &Tier, wishes: Wishes) -> Figure {
    let rate = client_rate(system, tier, wishes);
    let block = Figure::design("block", Unit::Bytes, tier.storage.block_size);
    let wait = match crate::evaluate::evaluate_tier(system, tier).cold_block {
        Some(cold) => cold,
        None => Figure::constant("one block", Unit::Seconds, 0.005, "assumption: solid state"),
    };
    let in_flight = (rate.value * wait.value / block.value).ceil() + 1.0;
    let least = in_flight * block.value / 0.2;
    // The documents never set less than 1 GiB on a server of their day.
    let pool = (least / (64.0 * MIB)).ceil() * 64.0 * MIB;
    Figure::formula(
        "page pool",
        Unit::Bytes,
        pool.max(1024.0 * MIB),
        "(rate * time of a block / block + 1) * block / 20 %, at least 1G",
        vec![rate, wait, block],
    )
}

fn explain_pool(pool: &Figure) -> String {
    let inputs: Vec<String> = pool.inputs().iter().map(Figure::show).collect();
    format!(
        "blocks in flight at {} with {} per block of {}, within the fifth of the pool that \
         prefetch may use; at least 1G; more caches more",
        inputs[0], inputs[1], inputs[2]
    )
}

/// What one client is to reach.
fn client_rate(system: &System, tier: &Tier, wishes: Wishes) -> Figure {
    if let Some(rate) = wishes.client_rate {
        return Figure::design("wanted by one client", Unit::BytesPerSecond, rate);
    }
    let of_clients = system.clients.as_ref().and_then(|c| Some((c.model, c.lan?)));
    let of_servers = tier.servers.as_ref().and_then(|s| Some((s.model, s.lan?)));
    match of_clients.or(of_servers) {
        Some((model, lan)) => adapter(model, lan),
        None => crate::evaluate::evaluate_tier(system, tier).rate(Metric::Read).total.clone(),
    }
}

fn controller(tier: &Tier, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let storage = &tier.storage;
    let segment = storage.block_size / storage.code.data as f64;
    let stripe = "block = Q x data disks x segment with Q = 1: a block write is a whole stripe and \
                  reads nothing";
    add(make.setting(
        Target::Controller,
        ("segment size", short(segment)),
        vec![],
        stripe,
        "dcs3700: Phase 1 tuning parameters, item 4; p690-x335: Appendix A",
    ));
    write_cache(tier, make, add);
    let arrays = storage.arrays_per_enclosure();
    let (tables, why) = match storage.enclosure.controllers.value {
        0 | 1 => (Vec::new(), "one controller owns all arrays; each array is one LUN"),
        _ => (
            disk_tables(tier),
            "arrays spread over all drawers and over even and odd slots; odd arrays owned by \
             controller A, even ones by B",
        ),
    };
    add(make.setting(
        Target::Controller,
        ("arrays and LUNs", format!("{arrays} per enclosure, one LUN each")),
        tables,
        why,
        "dcs3700: Optimal RAID 5 and RAID 6 disk to array layout",
    ));
}

fn write_cache(tier: &Tier, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let storage = &tier.storage;
    let alone = storage.enclosure.controllers.value < 2;
    let (value, why) = match storage.ceiling.map(|row| row.write_cache) {
        Some(WriteCache::Off) => ("off", "data is on disk when a write returns"),
        Some(WriteCache::Unmirrored) if alone => (
            "on, with its battery",
            "one controller has nothing to mirror to: what its cache holds is lost with the \
             adapter, and the battery keeps it only over a loss of power",
        ),
        Some(WriteCache::Unmirrored) => {
            ("on, not mirrored", "fastest, and dies with its controller; mirrored or off is safe")
        }
        _ => ("on, mirrored", "either controller holds what the other has acknowledged"),
    };
    add(make.setting(
        Target::Controller,
        ("write cache", value.into()),
        vec![],
        why,
        "dcs3700: Phase 1 tuning parameters, item 5",
    ));
}

/// The tables of `disk_map` as text, where the enclosure has drawers.
fn disk_tables(tier: &Tier) -> Vec<String> {
    let storage = &tier.storage;
    let trays = &storage.disks_per_tray;
    if trays.iter().any(|disks| *disks != 60) {
        return Vec::new();
    }
    let width = storage.code.width();
    let mut lines = Vec::new();
    for tray in 0..trays.len() as u64 {
        let Some(map) = disk_map(width, 1 + tray * 60 / width) else { return Vec::new() };
        lines.push(format!("tray {tray}: drawer, then slots 1 to 12"));
        for (drawer, row) in map.iter().enumerate() {
            let owner = |array: &u64| if array % 2 == 1 { 'A' } else { 'B' };
            let cells: Vec<String> = row
                .iter()
                .map(|array| format!("{:>4}", format!("{}{array}", owner(array))))
                .collect();
            lines.push(format!("  {} {}", drawer + 1, cells.join("")));
        }
    }
    lines
}

fn transfer_group(tier: &Tier, make: &Maker, add: &mut dyn FnMut(Setting)) {
    add(make.setting(
        Target::Aix,
        ("largest transfer (LTG of the volume group)", short(tier.storage.block_size)),
        vec![],
        "J x data disks x segment with whole J, so that no transfer cuts a stripe; here J = 1",
        "p690-x335: Appendix A",
    ));
}

fn transfer_size(tier: &Tier, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let kilobytes = (tier.storage.block_size / KIB).ceil();
    let each = |name: &str| format!("echo {kilobytes} > /sys/block/$DEVICE/queue/{name}");
    let rule = format!(
        "KERNEL==\"sd*\", SUBSYSTEM==\"block\", ACTION==\"add|change\", \
         ATTR{{queue/max_sectors_kb}}=\"{kilobytes}\", ATTR{{queue/read_ahead_kb}}=\"{kilobytes}\""
    );
    add(make.setting(
        Target::Server,
        ("max_sectors_kb, read_ahead_kb", format!("{kilobytes}")),
        vec![
            each("max_sectors_kb"),
            each("read_ahead_kb"),
            format!(
                "# to keep them over a reboot, /etc/udev/rules.d/90-transfer-size.rules: {rule}"
            ),
        ],
        "at least one block in KB, on every LUN of every server; not above max_hw_sectors_kb",
        "dcs3700: Phase 1, setting the transfer size",
    ));
}

fn gpfs(tier: &Tier, rate: &Figure, pool: &Figure, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let storage = &tier.storage;
    let controller = storage.parity == Parity::Controller;
    let (block, other_block) = block_of(storage.block_size, GPFS_BLOCKS, controller);
    let block = short(block).to_lowercase();
    let mbps = 2.0 * rate.value / MIB;
    add(make.setting(
        Target::Gpfs,
        ("maxMBpS", format!("{mbps:.0}")),
        vec![format!("mmchconfig maxMBpS={mbps:.0}")],
        format!("twice the {} wanted of one node; sets the depth of prefetch", rate.show()),
        "dcs3700: mmchconfig parameters",
    ));
    add(make.setting(
        Target::Gpfs,
        ("maxblocksize and block size", block.clone()),
        vec![
            format!("mmchconfig maxblocksize={block}"),
            format!("mmcrfs MOUNTPOINT DEVICE -F disk.lst -A yes -B {block} -j scatter -n NODES"),
        ],
        format!(
            "block = stripe of the array; scatter keeps the rate as disks fill; -n cannot be changed \
             later{other_block}"
        ),
        "dcs3700: mmcrfs parameters",
    ));
    add(make.setting(
        Target::Gpfs,
        ("pagepool", short(pool.value)),
        vec![format!("mmchconfig pagepool={}", short(pool.value))],
        explain_pool(pool),
        "dcs3700: mmchconfig parameters (1G); gpfs-performance: prefetchPct",
    ));
    if controller {
        let luns = storage.arrays_per_enclosure() * storage.per_block;
        // Disks inside the servers are served by their own server alone.
        let servers = tier.servers.as_ref().map_or(1, |servers| servers.per_block);
        let served = if storage.enclosure.inside_server() { luns.div_ceil(servers) } else { luns };
        let workers = 3 * served + 1;
        add(make.setting(
            Target::Gpfs,
            ("nsdMaxWorkerThreads", workers.to_string()),
            vec![format!("mmchconfig nsdMaxWorkerThreads={workers} -N SERVERS")],
            format!("more than 3 x the {served} LUNs that a server of a block serves"),
            "dcs3700: Effectively using 2xTbE",
        ));
        add(make.setting(
            Target::Gpfs,
            ("disk.lst", format!("{luns} LUNs of a block")),
            descriptors(tier, luns),
            match storage.enclosure.inside_server() {
                true => "a LUN has one server: the one that its adapter sits in",
                false => "the servers of a block take turns as the first server of its LUNs",
            },
            "dcs3700: NSD specification file",
        ));
    }
    let infiniband =
        tier.servers.as_ref().and_then(|s| s.lan).is_some_and(|l| l.fabric == Fabric::Infiniband);
    if infiniband {
        add(make.setting(
            Target::Gpfs,
            ("verbsRdma", "enable".into()),
            vec!["mmchconfig verbsRdma=enable,verbsPorts=DEVICE/PORT".into()],
            "RDMA carries more than IP over InfiniBand",
            "dcs3700: InfiniBand in two ways",
        ));
    }
}

fn descriptors(tier: &Tier, luns: u64) -> Vec<String> {
    let servers = tier.servers.as_ref().map_or(1, |servers| servers.per_block);
    let inside = tier.storage.enclosure.inside_server();
    let reach = if inside { 1 } else { servers };
    let line = |lun: u64| {
        let names: Vec<String> =
            (0..reach).map(|k| format!("server{}", (lun + k) % servers + 1)).collect();
        format!("/dev/LUN{lun}:{}::::{}_{lun}", names.join(","), tier.storage.enclosure.name)
    };
    (0..luns).map(line).collect()
}

fn network(tier: &Tier, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let Some(lan) = tier.servers.as_ref().and_then(|servers| servers.lan) else { return };
    if lan.fabric != Fabric::Ethernet {
        return;
    }
    let fast = lan.port_rate.value.0 >= 5e9;
    let commands = vec![
        "ip link set dev DEVICE mtu 9000".into(),
        format!("# every port of the switches: MTU {}", if fast { 9216 } else { 9000 }),
    ];
    add(make.setting(
        Target::Network,
        ("MTU", "9000".into()),
        commands,
        "jumbo frames on servers, clients and every switch port between them",
        "p690-x335: Cluster network configuration; dell-nss: TCP/IP; sas-ess3000: Networking",
    ));
    let ports = lan.ports.value * tier.servers.as_ref().map_or(1, |servers| servers.lan_per_server);
    if ports > 1 {
        let options = if fast {
            "miimon=100,mode=4,xmit_hash_policy=layer3+4"
        } else {
            "miimon=100,mode=balance-rr"
        };
        add(make.setting(
            Target::Network,
            ("bonding", options.into()),
            vec![
                "nmcli con add type bond con-name bond0 ifname bond0".into(),
                format!("nmcli connection modify bond0 bond.options \"{options}\""),
            ],
            "one address over all ports; where 802.3ad (mode 4) made switch ports flap under \
             load, mode 0 did not",
            "dcs3700: 2xTbE case study #2; sas-ess3000: Networking configuration",
        ));
        add(make.setting(
            Target::Network,
            ("flow control", "on".into()),
            vec![
                "ethtool -A DEVICE rx on tx on".into(),
                "# only if a switch cannot: sysctl -w net.ipv4.tcp_rmem=\"4096 16384 4194304\" \
                 net.ipv4.tcp_wmem=\"4096 16384 4194304\""
                    .into(),
            ],
            "many clients reading from few servers drop packets; prefer Ethernet flow control, \
             else smaller TCP windows",
            "dcs3700: Effectively using 2xTbE and its case study #1",
        ));
    }
}

/// The settings as text, by whom they are for.
pub fn render(title: &str, settings: &[Setting]) -> String {
    let mut out = format!("{title}\n");
    for target in Target::ALL {
        let of_target: Vec<&Setting> = settings.iter().filter(|s| s.target == target).collect();
        if of_target.is_empty() {
            continue;
        }
        out.push_str(&format!("\n{}\n", target.title()));
        for setting in of_target {
            let (name, value, tier) = (&setting.name, &setting.value, &setting.tier);
            out.push_str(&format!("  {name} = {value}  (tier {tier})\n"));
            out.push_str(&format!("    why: {} [{}]\n", setting.why, setting.source));
            for command in &setting.commands {
                out.push_str(&format!("      {command}\n"));
            }
        }
    }
    out
}
