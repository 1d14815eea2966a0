//! Reservations of one disk by two servers, on a file of the host.

use super::*;
use strake_env::disk::file::Allocation;

const CLUSTER: ClusterId = ClusterId([5; 16]);
const NSD: NsdId = NsdId(7);

/// A disk that two servers reach; it goes with this.
struct Shelf(PathBuf);

impl Shelf {
    fn new(name: &str) -> Shelf {
        let path = std::env::temp_dir().join(format!("strake-{name}-{}", std::process::id()));
        FileDisk::create(&path, 1 << 20, Allocation::Sparse).expect("created");
        Shelf(path)
    }

    /// The server at that place begins to reserve the disk under a number.
    fn reserve(&self, place: usize, number: u64) -> Arc<Reserved> {
        let servers = ["n1", "n2"].map(str::to_owned).to_vec();
        let shared = SharedConfig { number, place, servers };
        let observe = Observe::new(RealClock::shared(), 16);
        Reserved::start(&self.0, (CLUSTER, NSD), &shared, &observe).expect("begins")
    }

    fn marks(&self) -> Vec<Option<Mark>> {
        let servers = ["n1", "n2"].map(|name| name.parse().expect("a name")).to_vec();
        Marks::open(&self.0, (CLUSTER, NSD), servers).and_then(|marks| marks.read()).expect("reads")
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn leave(reserved: &Reserved) {
    reserved.leave();
    reserved.wait_for_end(RealClock.monotonic() + Duration::from_secs(60));
    assert!(reserved.has_ended());
}

/// Waits until it is over, and says why.
fn reason(reserved: &Reserved) -> String {
    let end = RealClock.monotonic() + Duration::from_secs(60);
    loop {
        match reserved.is_over() {
            Some(why) => return why,
            None if RealClock.monotonic() > end => panic!("it is not over"),
            None => RealClock.sleep(STEP),
        }
    }
}

#[test]
fn a_later_server_gets_the_disk_when_the_one_before_has_left() {
    let shelf = Shelf::new("reserved-later");
    let first = shelf.reserve(0, 1);
    let permit = first.permit().expect("nobody else is there");
    assert!(permit.is_valid());
    let second = shelf.reserve(1, 2);
    assert_eq!(reason(&first), "n2 serves it now");
    assert_eq!(second.permit().err().map(|it| it.kind()), Some(ErrorKind::Busy), "n1 is there");
    leave(&first);
    assert!(!permit.is_valid());
    assert!(second.permit().expect("n1 has left").is_valid());
    leave(&second);
    let marks = shelf.marks().into_iter().flatten();
    let marks: Vec<_> = marks.map(|it| (it.number, it.is_active, it.is_held)).collect();
    assert_eq!(marks, [(1, false, true), (2, false, true)]);
}

#[test]
fn a_server_with_older_records_than_its_mark_writes_nothing() {
    let shelf = Shelf::new("reserved-older");
    let now = shelf.reserve(0, 9);
    now.permit().expect("nobody else is there");
    leave(&now);
    let before = shelf.marks();
    let late = shelf.reserve(0, 8);
    assert!(reason(&late).contains("older records"));
    late.wait_for_end(RealClock.monotonic() + Duration::from_secs(60));
    assert_eq!(shelf.marks(), before);
    let again = shelf.reserve(0, 9);
    assert!(again.permit().expect("its own time").is_valid());
    leave(&again);
}
