//! Outputs as the tools print them, old versions and new ones.

use super::*;

const FIO: &str = r#"fio: this line comes before the report
{
  "fio version" : "fio-3.33",
  "global options" : {"direct" : "1", "bs" : "1M"},
  "jobs" : [
    {"jobname" : "seq", "job options" : {"rw" : "write", "iodepth" : "16"},
     "read" : {"bw_bytes" : 0, "iops" : 0.0},
     "write" : {"bw_bytes" : 2097152000, "iops" : 2000.0, "clat_ns" : {"mean" : 8000000.0}}},
    {"jobname" : "small", "job options" : {"rw" : "randread", "bs" : "4k", "numjobs" : "4", "iodepth" : "32"},
     "read" : {"bw_bytes" : 1638400000, "iops" : 400000.5, "clat_ns" : {"mean" : 320000.0}},
     "write" : {"bw_bytes" : 0, "iops" : 0.0}},
    {"jobname" : "mixed", "job options" : {"rw" : "randrw", "bs" : "4k"},
     "read" : {"iops" : 1.0}, "write" : {"iops" : 1.0}}
  ]
}"#;

const IOR: &str = "IOR-3.4.0+dev: MPI Coordinated Test of Parallel I/O
Options:
api                 : POSIX
ordering in a file  : sequential
nodes               : 15
tasks               : 30
clients per node    : 2
xfersize            : 16 MiB
Results:
Max Write: 14970.40 MiB/sec (15697.61 MB/sec)
Max Read:  15193.71 MiB/sec (15931.77 MB/sec)
";

const IOR_OLD: &str = "IOR-3.0.1: MPI Coordinated Test of Parallel I/O
Summary:
	ordering in a file = random offsets
	clients            = 16 (8 per node)
	xfersize           = 4096 bytes
Max Write: 10.00 MiB/sec (10.49 MB/sec)
Max Read:  0.00 MiB/sec (0.00 MB/sec)
";

const MDTEST: &str = "-- started --
mdtest-1.9.3 was launched with 32 total task(s) on 4 node(s)
SUMMARY rate: (of 3 iterations)
   Operation                      Max            Min           Mean        Std Dev
   ---------                      ---            ---           ----        -------
   Directory creation        :       6000.0         5800.0       5944.136         10.0
   File creation             :       6700.0         6500.0       6592.982         12.5
   Tree removal              :          0.0            0.0            0.0          0.0
-- finished --
";

const MDTEST_4: &str = "mdtest-4.0.0 was launched with 8 total task(s) on 2 node(s)
SUMMARY rate (in ops/sec): (of 1 iterations)
   Operation     per Rank: Max    Min     Mean   per Iteration: Max    Min     Mean    Std Dev
   ---------               ---    ---     ----                  ---    ---     ----    -------
   File creation         900.0  800.0    850.0   850.0       7000.0 6000.0   6400.0      100.0
";

fn rows(text: &str) -> (Vec<Row>, Vec<Unused>) {
    read("file", text).expect("a tool that is known").unwrap()
}

#[test]
fn fio_gives_streams_and_operations_with_their_depth() {
    let (rows, unused) = rows(FIO);
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].did, rows[0].value, rows[0].record), (Did::Write, 2_097_152_000.0, MIB));
    assert_eq!((rows[1].did, rows[1].value), (Did::RandomRead, 400_000.5));
    assert_eq!((rows[1].record, rows[1].tasks, rows[1].depth), (4.0 * KIB, 4, Some(128)));
    assert_eq!(rows[1].latency, Some(320e-6));
    assert_eq!(unused.len(), 1);
    assert!(unused[0].name.contains("mixed") && unused[0].why.contains("randrw"), "{unused:?}");
}

#[test]
fn ior_gives_rates_of_its_nodes_in_both_forms() {
    let (new, unused) = rows(IOR);
    assert!(unused.is_empty());
    assert_eq!((new[0].did, new[0].value), (Did::Write, 14970.40 * MIB));
    assert_eq!((new[1].did, new[1].hosts, new[1].tasks), (Did::Read, 15, 2));
    assert_eq!(new[1].record, 16.0 * MIB);
    let (old, unused) = rows(IOR_OLD);
    assert_eq!((old[0].did, old[0].value), (Did::RandomWrite, 2560.0));
    assert_eq!((old[0].hosts, old[0].tasks), (2, 8));
    assert!(unused[0].why.contains("nothing"), "{unused:?}");
}

#[test]
fn mdtest_gives_the_mean_of_both_forms() {
    let (old, unused) = rows(MDTEST);
    assert_eq!((old[1].did, old[1].value), (Did::Create, 6592.982));
    assert_eq!((old[0].did, old[0].hosts, old[0].tasks), (Did::Names, 4, 8));
    assert_eq!(unused[0].name, "mdtest tree removal");
    let (new, _) = rows(MDTEST_4);
    assert_eq!((new[0].did, new[0].value, new[0].hosts), (Did::Create, 6400.0, 2));
}

#[test]
fn other_texts_are_of_no_tool() {
    for text in ["", "{}", "hello", "{\"tool\": \"strake bench\", \"metrics\": []}"] {
        assert!(read("file", text).is_none(), "{text}");
    }
    assert!(read("file", "{\"fio version\": 3").unwrap().is_err());
}

#[test]
fn broken_outputs_give_rows_or_errors_and_never_a_panic() {
    let mut rng = strake_env::Rng::new(3);
    for _ in 0..3000 {
        let texts = [FIO, IOR, IOR_OLD, MDTEST, MDTEST_4];
        let mut bytes = texts[rng.index(texts.len())].as_bytes().to_vec();
        for _ in 0..=rng.below(6) {
            let at = rng.index(bytes.len());
            match rng.below(3) {
                0 => bytes[at] = b' ' + rng.below(95) as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b'0' + rng.below(10) as u8),
            }
        }
        if let Some(Ok((rows, _))) = read("file", &String::from_utf8_lossy(&bytes)) {
            assert!(rows.iter().all(|row| row.value > 0.0 && row.value.is_finite()));
        }
    }
}
