//! The simulated disk: what a power cut may leave, and the faults it injects.

use super::*;

const LENGTH: u64 = 1 << 20;

fn write(disk: &SimDisk, page: u64, fill: u8) {
    disk.write_at(page * 4096, &[fill; 4096]).unwrap();
}

fn read(disk: &SimDisk, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    disk.read_at(page * 4096, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_decides_on_the_rest() {
    let disk = SimDisk::new(LENGTH);
    write(&disk, 0, 1);
    disk.sync().unwrap();
    write(&disk, 0, 2);
    write(&disk, 1, 3);
    let position = disk.position();
    write(&disk, 2, 4);
    let mut fates = [Fate::Lost, Fate::Kept].into_iter();
    let image = disk.image(position, |_| fates.next().unwrap());
    assert_eq!((read(&image, 0)[0], read(&image, 1)[0], read(&image, 2)[0]), (1, 3, 0));
    let image = disk.image(position, |_| Fate::Torn(vec![true, false, true]));
    let page = read(&image, 0);
    assert_eq!((page[0], page[511], page[512], page[1024], page[1536]), (2, 2, 1, 2, 1));
}

#[test]
fn a_second_opening_is_refused_while_the_first_lasts() {
    let disk = SimDisk::new(LENGTH);
    let open = disk.open(Duration::ZERO).unwrap();
    let refused = disk.open(Duration::from_millis(1)).map(drop).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    assert!(disk.copy().open(Duration::ZERO).is_ok(), "a copy is a disk of its own");
    crate::thread::scope(|scope| {
        let next = scope.spawn(|| disk.open(Duration::from_secs(60)).map(drop));
        drop(open);
        next.join().unwrap().unwrap();
    });
    assert!(disk.open(Duration::ZERO).is_ok());
}

#[test]
fn every_position_has_its_image() {
    let disk = SimDisk::new(LENGTH);
    for fill in 1..=20 {
        write(&disk, u64::from(fill) % 3, fill);
        disk.sync().unwrap();
    }
    let mut cuts = disk.power_cuts();
    let mut newest = [0u8; 3];
    for (position, event) in disk.events() {
        cuts.advance(position);
        if let Event::Write { offset, bytes } = &event {
            newest[(offset / 4096) as usize] = bytes[0];
        }
        let image = cuts.image(|_| Fate::Kept);
        for page in 0..3 {
            assert_eq!(read(&image, page)[0], newest[page as usize], "position {position}");
        }
    }
}

#[test]
fn a_seed_reproduces_its_crash() {
    let disk = SimDisk::new(LENGTH);
    for page in 0..100 {
        write(&disk, page, 7);
    }
    let image = |seed| {
        let image = disk.crash(disk.position(), &mut Rng::new(seed));
        (0..100).flat_map(|page| read(&image, page)).collect::<Vec<u8>>()
    };
    assert_eq!(image(1), image(1));
    assert_ne!(image(1), image(2));
}

#[test]
fn disks_of_one_machine_lose_power_together() {
    let sequence = Sequence::default();
    let disks =
        [SimDisk::with_sequence(LENGTH, &sequence), SimDisk::with_sequence(LENGTH, &sequence)];
    write(&disks[0], 0, 1);
    write(&disks[1], 0, 2);
    let position = sequence.position();
    write(&disks[0], 0, 3);
    let images = disks.map(|disk| disk.image(position, |_| Fate::Kept));
    assert_eq!((read(&images[0], 0)[0], read(&images[1], 0)[0]), (1, 2));
}

#[test]
fn faults_come_when_they_are_switched_on() {
    let disk = SimDisk::new(LENGTH);
    write(&disk, 0, 1);
    let mut page = vec![0; 4096];
    disk.set_faults(|faults| faults.read_errors.push(4096..8192));
    assert_eq!(disk.read_at(4096, &mut page).unwrap_err().raw_os_error(), Some(5));
    disk.read_at(0, &mut page).unwrap();
    disk.set_faults(|faults| faults.write_errors.push(0..1));
    assert!(disk.write_at(0, &page).is_err());
    disk.write_at(4096, &page).unwrap();
    disk.set_faults(|faults| faults.writes_until_error = Some(1));
    disk.write_at(8192, &page).unwrap();
    assert!(disk.write_at(12288, &page).is_err());
    disk.set_faults(|faults| *faults = Faults { host_bytes_left: Some(4096), ..Faults::default() });
    disk.write_at(0, &page).unwrap();
    disk.reserve(40960, 4096).unwrap();
    let full = disk.write_at(81920, &page).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    disk.write_at(40960, &page).unwrap();
    disk.set_faults(|faults| *faults = Faults { sync_failure: true, ..Faults::default() });
    assert!(disk.sync().is_err());
    disk.set_faults(|faults| *faults = Faults::default());
    assert!(disk.sync().is_err() && disk.write_at(0, &page).is_err(), "dead for good");
    disk.flip(1, 0x10);
    disk.read_at(0, &mut page).unwrap();
    assert_eq!(page[1], 0x11);
}

#[test]
fn a_hanging_call_ends_when_released_or_at_its_limit() {
    let disk = SimDisk::new(LENGTH);
    disk.set_faults(|faults| {
        faults.hang = true;
        faults.hang_limit = Some(Duration::from_millis(1));
    });
    assert_eq!(disk.sync().unwrap_err().kind(), io::ErrorKind::TimedOut);
    disk.set_faults(|faults| faults.hang_limit = Some(Duration::from_secs(600)));
    crate::thread::scope(|scope| {
        let call = scope.spawn(|| disk.write_at(0, &[1; 4096]));
        disk.set_faults(|faults| faults.hang = false);
        call.join().unwrap().unwrap();
    });
}
