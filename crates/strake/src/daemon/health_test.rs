//! Each event is told where its component is as it says, and nothing else.

use super::*;
use serde_json::json;
use strake_observe::health::{Colour, EVENTS};
use strake_observe::recent::Window;
use strake_observe::{DiskWork, Finding};
use strake_proto::NsdId;
use strake_proto::Timestamp;

const GIB: u64 = 1 << 30;

/// A file system of which everything is as it should be.
struct World {
    show: Show,
    report: SlowReport,
    places: Vec<String>,
    slow: Vec<SlowDisk>,
    waiters: Vec<WaiterSnapshot>,
    now: i64,
    full_in: Option<Duration>,
    certificate_ends: Option<i64>,
    detours: Option<Vec<(String, String)>>,
}

impl World {
    fn new() -> World {
        let nsd = |id: u32| {
            json!({ "id": id, "name": format!("nsd{id}"), "path": "", "failureGroup": id,
                    "holdsMetadata": id <= 3, "status": NsdStatus::Ready,
                    "availability": NsdAvailability::Up, "badStrips": 0, "repairedStrips": 0,
                    "totalBytes": 100 * GIB, "freeBytes": 50 * GIB })
        };
        let nsds: Vec<_> = (1..=6).map(nsd).collect();
        let show = json!({ "name": "a", "cluster": "", "code": "4+2p", "blockSize": 0,
            "createdSeconds": 1000, "mount": "", "data": "", "pid": 7, "node": "",
            "formatVersion": 1, "version": "", "usableBytes": 400 * GIB, "freeBytes": 200 * GIB,
            "inodes": 0, "settings": [], "nsds": nsds });
        let window = Window::default();
        World {
            show: serde_json::from_value(show).expect("a show"),
            report: slow::explain(KEPT, &window, &slow::Facts::default(), &|_| None),
            places: vec!["/mnt/a".to_owned()],
            slow: Vec::new(),
            waiters: Vec::new(),
            now: 2000,
            full_in: None,
            certificate_ends: None,
            detours: None,
        }
    }

    fn judge(&self) -> Health {
        let facts = Facts {
            show: &self.show,
            places: self.places.clone(),
            report: &self.report,
            slow: self.slow.clone(),
            waiters: self.waiters.clone(),
            now: self.now,
            full_in: self.full_in,
            certificate_ends: self.certificate_ends,
            detours: self.detours.clone(),
        };
        facts.judge()
    }

    /// Each component that is not green, with its event.
    fn events(&self) -> Vec<(String, String)> {
        let components = self.judge().components.into_iter();
        components.filter_map(|it| it.event.map(|event| (it.name, event))).collect()
    }

    fn find(&mut self, id: &str) {
        self.report.findings.push(Finding {
            id: id.to_owned(),
            title: id.to_owned(),
            nanos: 1,
            percent: 50,
            evidence: Vec::new(),
            advice: Vec::new(),
            who: None,
        });
    }

    fn wait(&mut self, reason: &str, seconds: u64) {
        self.waiters.push(WaiterSnapshot {
            thread: "fuse-1".to_owned(),
            reason: reason.to_owned(),
            detail: String::new(),
            since: Timestamp::default(),
            waited: Duration::from_secs(seconds),
            ..WaiterSnapshot::default()
        });
    }
}

/// Spoils a world.
type Spoil = fn(&mut World);

#[test]
fn a_file_system_that_is_well_is_green() {
    let health = World::new().judge();
    assert_eq!(health.colour, Colour::Green, "{health:?}");
    assert_eq!(health.components.len(), 2 + 6 + 6);
}

#[test]
fn each_event_comes_from_its_own_trouble() {
    let cases: &[(&str, &str, Spoil)] = &[
        ("mount", "mount_gone", |it| it.places.clear()),
        ("nsd2", "nsd_down", |it| it.show.nsds[1].availability = NsdAvailability::Down),
        ("nsd2", "nsd_recovering", |it| {
            it.show.nsds[1].availability = NsdAvailability::Recovering;
        }),
        ("nsd2", "nsd_suspended", |it| it.show.nsds[1].status = NsdStatus::Suspended),
        ("nsd2", "nsd_leaving", |it| it.show.nsds[1].status = NsdStatus::BeingEmptied),
        ("nsd2", "nsd_bad", |it| {
            (it.show.nsds[1].bad_strips, it.show.nsds[1].repaired_strips) = (3, 2);
        }),
        ("nsd2", "nsd_slow", |it| {
            it.slow.push(SlowDisk {
                nsd: NsdId(2),
                work: DiskWork::Read,
                count: 10,
                mean_ns: 9_000_000,
                peers_ns: 1_000_000,
                excess_ns: 80_000_000,
            });
        }),
        ("nsd2", "nsd_silent", |it| {
            let what = "the space of nsd2".to_owned();
            it.show.late.push(crate::show::Late { what, as_of_seconds: Some(3) });
        }),
        ("space", "space_low", |it| it.show.nsds[1].free_bytes = Some(6 * GIB)),
        ("space", "space_out", |it| it.show.free_bytes = Some(0)),
        ("space", "space_soon", |it| it.full_in = Some(Duration::from_secs(3 * 24 * 3600))),
        ("pagepool", "pool_small", |it| it.find("page-pool")),
        ("metadata", "metadata_copies", |it| it.show.nsds[1].holds_metadata = Some(false)),
        ("requests", "requests_slow", |it| it.find("sync-per-record")),
        ("waits", "requests_held", |it| it.wait("NSD commit", 12)),
        ("waits", "requests_stuck", |it| it.wait("NSD commit", 70)),
        ("certificate", "certificate_ended", |it| it.certificate_ends = Some(1999)),
        ("certificate", "certificate_ends", |it| {
            it.certificate_ends = Some(2000 + CERTIFICATE_SOON);
        }),
        ("links", "link_bad", |it| {
            it.detours = Some(vec![("n3".to_owned(), "n1".to_owned())]);
        }),
        ("clock", "clock_back", |it| it.now = 900),
    ];
    for (component, event, spoil) in cases {
        let mut world = World::new();
        spoil(&mut world);
        assert_eq!(world.events(), [((*component).to_owned(), (*event).to_owned())]);
        let colour = EVENTS.iter().find(|it| it.id == *event).expect("it is listed").colour;
        assert_eq!(world.judge().colour, colour);
    }
    // These concern several components, or a daemon that does not answer.
    let others = ["daemon_down", "daemon_silent", "metadata_away", "nsd_lost"];
    let told = |id: &str| others.contains(&id) || cases.iter().any(|(_, event, _)| *event == id);
    assert!(EVENTS.iter().all(|event| told(event.id)), "an event has no case");
}

#[test]
fn more_disks_than_the_code_tolerates_are_lost() {
    let mut world = World::new();
    for nsd in &mut world.show.nsds[..3] {
        nsd.availability = NsdAvailability::Down;
    }
    let events: Vec<String> = world.events().into_iter().map(|(_, event)| event).collect();
    assert_eq!(events, ["nsd_lost"; 3]);
    assert_eq!(world.judge().colour, Colour::Red);
}

#[test]
fn a_dead_node_has_a_disk_and_a_copy_of_the_metadata() {
    let mut world = World::new();
    world.show.nsds[1].availability = NsdAvailability::Down;
    world.show.nsds[1].total_bytes = None;
    let events: Vec<String> = world.events().into_iter().map(|(_, event)| event).collect();
    assert_eq!(events, ["nsd_down", "metadata_away"]);
}

#[test]
fn what_is_no_trouble_stays_green() {
    let mut world = World::new();
    world.wait("lock", 5000);
    world.wait("NSD commit", 3);
    world.full_in = Some(Duration::from_secs(400 * 24 * 3600));
    world.certificate_ends = Some(2001 + CERTIFICATE_SOON);
    world.show.nsds[1].bad_strips = 3;
    world.show.nsds[1].repaired_strips = 3;
    let health = world.judge();
    assert_eq!(health.colour, Colour::Green, "{health:?}");
    let space = health.components.iter().find(|it| it.name == "space").expect("it is there");
    assert_eq!(space.text, "200 GiB free of 400 GiB; full in 400 days at this rate");
}
