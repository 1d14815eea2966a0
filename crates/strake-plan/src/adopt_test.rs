//! Measured constants in copied entries, and what finds no place.

use super::*;

fn row(name: &str, did: Did, value: f64, record: f64) -> Row {
    Row {
        name: name.into(),
        did,
        value,
        hosts: 2,
        tasks: 4,
        record,
        latency: Some(90e-6),
        depth: Some(if name.contains("alone") { 1 } else { 128 }),
    }
}

#[test]
fn every_figure_is_in_an_entry_or_named() {
    let rows = vec![
        row("fio a: write 1 MB", Did::Write, 2000.0 * MIB, MIB),
        row("fio b: randread 4 KB", Did::RandomRead, 700_000.0, 4.0 * KIB),
        row("fio alone: randread 4 KB", Did::RandomRead, 11_000.0, 4.0 * KIB),
        row("fio c: randread 64 KB", Did::RandomRead, 1000.0, 64.0 * KIB),
        row("fio d: read 4 KB", Did::Read, 1e8, 4.0 * KIB),
        row("IOR max read", Did::Read, 3000.0 * MIB, MIB),
        row("mdtest file creation", Did::Create, 12_345.0, 0.0),
        row("mdtest file stat", Did::Names, 99_999.0, 0.0),
    ];
    let like = Like {
        disk: Some("nvme-gen4-7680gb".into()),
        server: Some("nvme-server".into()),
        filesystem: Some("strake".into()),
    };
    let mut library = Library::built_in();
    let files = vec![("out".to_string(), rows)];
    let (text, unused) = adopt(&library, &like, &files).unwrap();
    library.add("measured.toml", &text).unwrap();
    library.check().unwrap();
    let disk = &library.disks["nvme-gen4-7680gb-measured"];
    assert_eq!(disk.stream_write.value.0, 2000.0 * MIB);
    assert_eq!(disk.iops_read.value, 700_000.0);
    assert_eq!(disk.latency_read.as_ref().unwrap().value, 90e-6);
    assert_eq!(disk.stream_read, library.disks["nvme-gen4-7680gb"].stream_read);
    assert!(disk.stream_write.source.starts_with("measured: out, fio a"));
    let server = &library.servers["nvme-server-measured"];
    assert_eq!(server.path_read.as_ref().unwrap().value.0, 1500.0 * MIB, "of one of two clients");
    assert_eq!(library.filesystems["strake-measured"].names.as_ref().unwrap().value, 12_345.0);
    let names: Vec<&str> = unused.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["fio c: randread 64 KB", "fio d: read 4 KB", "mdtest file stat"]);

    let (_, unused) = adopt(&library, &Like::default(), &files).unwrap();
    assert_eq!(unused.len(), 8, "without an entry everything is named");
    assert!(unused[0].why.contains("--disk"), "{unused:?}");
    let unknown = Like { disk: Some("floppy".into()), ..Like::default() };
    assert!(adopt(&library, &unknown, &files).is_err());
}
