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

/// With `-P`, which adds times, and `--showRankStatistics`.
const MDTEST_4: &str = "-- started at 04/03/2026 09:10:57 --

mdtest-4.1.0+dev was launched with 8 total task(s) on 2 node(s)
Command line used: mdtest '-n' '1000' '-d' '/mnt/strake/md' '--showRankStatistics' '-P'
Nodemap: 11110000
8 tasks, 8000 files/directories

SUMMARY rate (in ops/sec): (of 1 iterations)
   Operation     per Rank: Max            Min           Mean      per Iteration: Max            \
      Min           Mean        Std Dev
   ---------               ---            ---           ----                      ---            \
      ---           ----        -------
   File creation               900.000        800.000        850.000               \
      6400.000       6400.000       6400.000          0.000
   Tree creation               150.000        150.000        150.000            150.000        \
      150.000        150.000          0.000

SUMMARY time (in ms/op): (of 1 iterations)
   Operation     per Rank: Max            Min           Mean      per Iteration: Max            \
      Min           Mean        Std Dev
   ---------               ---            ---           ----                      ---            \
      ---           ----        -------
   File creation                 1.250          1.111          1.176                  \
      1.250          1.250          1.250          0.000
-- finished at 04/03/2026 09:11:20 --
";

/// Two tests of one script.
const IOR_TWO: &str = "IOR-4.1.0+dev: MPI Coordinated Test of Parallel I/O
Began               : Fri Apr  3 09:10:57 2026
Command line        : ior -f script

Options:
api                 : POSIX
access              : file-per-process
ordering in a file  : sequential
nodes               : 4
tasks               : 16
clients per node    : 4
xfersize            : 1 MiB
blocksize           : 1 GiB

Results:

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   \
      close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   \
      --------   --------   ----
write     4000.00    4000.00    0.001000    1048576    1024.00    0.000100   4.00       \
      0.000100   4.00       0
Max Write: 4000.00 MiB/sec (4194.30 MB/sec)

Options:
ordering in a file  : random
nodes               : 2
tasks               : 2
clients per node    : 1
xfersize            : 4 KiB

Results:

Max Read:  100.00 MiB/sec (104.86 MB/sec)
";

const IOR_JSON: &str = r#"{
  "Version": "4.1.0+dev",
  "Began": "Fri Apr  3 09:10:57 2026",
  "Command line": "ior -O summaryFormat=JSON",
  "tests": [
    {
      "TestID": 0,
      "Options": {"api": "POSIX", "ordering in a file": "sequential", "nodes": 4, "tasks": 16,
                  "clients per node": 4, "xfersize": "1 MiB"},
      "Results": [[{"access": "write", "bwMiB": 4000.0}]],
      "max": {"writeMiB": 4000.0, "writeMB": 4194.3, "readMiB": "inf", "readMB": "inf"}
    }
  ],
  "summary": [{"operation": "write", "bwMaxMIB": 4000.0}],
  "Finished": "Fri Apr  3 09:11:57 2026"
}
"#;

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
fn each_test_of_ior_has_its_own_options() {
    let (two, unused) = rows(IOR_TWO);
    assert!(unused.is_empty());
    assert_eq!((two[0].did, two[0].value), (Did::Write, 4000.0 * MIB));
    assert_eq!((two[0].hosts, two[0].tasks, two[0].record), (4, 4, MIB));
    assert_eq!((two[1].did, two[1].value), (Did::RandomRead, 25_600.0));
    assert_eq!((two[1].hosts, two[1].tasks), (2, 1));
}

#[test]
fn ior_is_read_as_json_too() {
    let (json, unused) = rows(IOR_JSON);
    assert_eq!(json, rows(IOR_TWO).0[..1]);
    assert_eq!(unused, [Unused::new("IOR max read", "no rate in MiB/sec")]);
}

#[test]
fn fio_that_moves_several_sizes_is_named() {
    let mixed = FIO.replace(r#""bs" : "4k", "numjobs""#, r#""bs" : "4k,64k", "numjobs""#);
    let (kept, unused) = rows(&mixed);
    assert_eq!((kept.len(), unused.len()), (1, 2));
    assert!(unused[0].why.contains("several sizes"), "{unused:?}");
}

#[test]
fn fio_may_print_its_report_as_text_as_well() {
    let both = format!("{FIO}\n\nseq: (groupid=0, jobs=1): err= 0: pid=4: Fri Apr  3 2026\n");
    assert_eq!(rows(&both), rows(FIO));
}

#[test]
fn fio_of_several_machines_is_named() {
    let (kept, unused) = rows(&FIO.replace("\"jobs\" :", "\"client_stats\" :"));
    assert!(kept.is_empty() && unused[0].why.contains("several machines"), "{unused:?}");
}

#[test]
fn mdtest_gives_the_mean_of_both_forms() {
    let (old, unused) = rows(MDTEST);
    assert_eq!((old[1].did, old[1].value), (Did::Create, 6592.982));
    assert_eq!((old[0].did, old[0].hosts, old[0].tasks), (Did::Names, 4, 8));
    assert_eq!(unused[0].name, "mdtest tree removal");
    let (new, unused) = rows(MDTEST_4);
    assert_eq!((new[0].did, new[0].value, new[0].hosts), (Did::Create, 6400.0, 2));
    assert_eq!((new[1].did, new[1].value, new.len()), (Did::Names, 150.0, 2));
    assert!(unused[0].why.contains("only rates"), "times are no rates: {unused:?}");
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
        let texts = [FIO, IOR, IOR_OLD, IOR_TWO, IOR_JSON, MDTEST, MDTEST_4];
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
