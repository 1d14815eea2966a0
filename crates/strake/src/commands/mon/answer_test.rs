//! Holds the layouts against the documents' screens.

use super::*;
use strake_observe::{HistogramOrder, IoDirection, Pattern, RequestHistograms};

fn head(parsable: bool, time: (i64, u32)) -> Head {
    let time = Timestamp { seconds: time.0, nanos: time.1 * 1000 };
    Head { address: "129.40.6.193".to_owned(), node: "x36i01".to_owned(), time, parsable }
}

fn text(print: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    print(&mut text).expect("a string takes all");
    text
}

/// The histogram of the best practices' example.
fn example() -> RequestHistogramView {
    let histograms = RequestHistograms::default();
    let sizes = vec![64 << 10, 256 << 10, 1 << 20, 4 << 20];
    let pattern = Pattern::new(sizes, vec![10, 100, 300, 1000]).expect("good");
    histograms.control(&HistogramOrder::Ranges(pattern));
    histograms.control(&HistogramOrder::On);
    let count = |direction, bytes, counts: [u64; 5]| {
        for (micros, count) in [1000, 10_000, 30_000, 100_000, 100_001].iter().zip(counts) {
            let took = std::time::Duration::from_micros(*micros);
            (0..count).for_each(|_| histograms.record(direction, bytes, took));
        }
    };
    count(IoDirection::Read, 1 << 20, [1649, 26, 66, 247, 60]);
    count(IoDirection::Read, 4 << 20, [118, 501, 100, 550, 779]);
    count(IoDirection::Write, 4 << 20, [14, 537, 497, 543, 457]);
    histograms.control(&HistogramOrder::Show)
}

#[test]
fn histograms_look_as_in_the_best_practices() {
    let read = head(false, (1_308_054_574, 52_992));
    let expected = "\
mmpmon node 129.40.6.193 name x36i01 rhist s OK read timestamp 1308054574/52992
size range          262145 to      1048576 count          2048
  latency range      0.0 to         1.0 count          1649
  latency range      1.1 to        10.0 count            26
  latency range     10.1 to        30.0 count            66
  latency range     30.1 to       100.0 count           247
  latency range    100.1 to         0.0 count            60
size range         1048577 to      4194304 count          2048
  latency range      0.0 to         1.0 count           118
  latency range      1.1 to        10.0 count           501
  latency range     10.1 to        30.0 count           100
  latency range     30.1 to       100.0 count           550
  latency range    100.1 to         0.0 count           779
mmpmon node 129.40.6.193 name x36i01 rhist s OK write timestamp 1308054574/52992
size range         1048577 to      4194304 count          2048
  latency range      0.0 to         1.0 count            14
  latency range      1.1 to        10.0 count           537
  latency range     10.1 to        30.0 count           497
  latency range     30.1 to       100.0 count           543
  latency range    100.1 to         0.0 count           457
";
    assert_eq!(text(|out| read.histograms(out, &example(), false)), expected);
    let done = text(|out| read.done(out, "rhist", "nr 64k;256k;1m;4m; 1;10;30;100"));
    let expected = "mmpmon node 129.40.6.193 name x36i01 rhist nr 64k;256k;1m;4m; 1;10;30;100 OK\n";
    assert_eq!(done, expected);
    assert_eq!(
        text(|out| read.done(out, "rhist", "on")),
        "mmpmon node 129.40.6.193 name x36i01 rhist on OK\n"
    );
}

#[test]
fn histograms_have_the_documented_keywords_for_programs() {
    let it = head(true, (7, 8));
    let mut view = example();
    view.counts.as_mut().expect("they were on").0.fill(0);
    let expected = "\
_rhist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ s _rc_ 0 _t_ 7 _tu_ 8 _k_ r
_rhist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ s _rc_ 0 _t_ 7 _tu_ 8 _k_ w
_R_ 1048577 4194304 _NR_ 2048
_L_ 0.0 1.0 _NL_ 14
_L_ 1.1 10.0 _NL_ 537
_L_ 10.1 30.0 _NL_ 497
_L_ 30.1 100.0 _NL_ 543
_L_ 100.1 0.0 _NL_ 457
_end_
";
    assert_eq!(text(|out| it.histograms(out, &view, false)), expected);
    let pattern = Pattern::new(vec![512], vec![13]).expect("good");
    let view = RequestHistogramView { on: false, pattern, counts: None };
    let expected = "\
_rhist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ p _rc_ 0 _t_ 7 _tu_ 8 _k_ r
_R_ 0 512
_L_ 0.0 1.3
_L_ 1.4 0.0
_R_ 513 0
_L_ 0.0 1.3
_L_ 1.4 0.0
_rhist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ p _rc_ 0 _t_ 7 _tu_ 8 _k_ w
_R_ 0 512
_L_ 0.0 1.3
_L_ 1.4 0.0
_R_ 513 0
_L_ 0.0 1.3
_L_ 1.4 0.0
_end_
";
    assert_eq!(text(|out| it.histograms(out, &view, true)), expected);
    assert_eq!(
        text(|out| it.done(out, "rhist", "off")),
        "_rhist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ off _rc_ 0 _t_ 7 _tu_ 8\n"
    );
    assert_eq!(
        text(|out| it.refused(out, "rhist", "nr 512;1m;4m 1;4;8;2", (22, "range error"))),
        "_rhist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ nr 512;1m;4m 1;4;8;2 _rc_ 22 _t_ 7 _tu_ 8\n"
    );
}

fn counters() -> IoCounters {
    IoCounters {
        bytes_read: 6_291_456,
        bytes_written: 314_572_800,
        opens: 10,
        closes: 16,
        reads: 101,
        writes: 300,
        readdirs: 7,
        inode_updates: 2,
    }
}

#[test]
fn counters_have_the_documented_keywords_and_names() {
    let fs = FsCounters {
        cluster: "cl1.cluster.net".to_owned(),
        name: "fs2".to_owned(),
        disks: 2,
        counters: counters(),
    };
    let it = head(true, (1_066_660_148, 407_431));
    let values = "_br_ 6291456 _bw_ 314572800 _oc_ 10 _cc_ 16 _rdc_ 101 _wc_ 300 _dir_ 7 _iu_ 2";
    let keys = "_n_ 129.40.6.193 _nn_ x36i01 _rc_ 0 _t_ 1066660148 _tu_ 407431";
    assert_eq!(
        text(|out| it.fs_io(out, &fs)),
        format!("_fs_io_s_ {keys} _cl_ cl1.cluster.net _fs_ fs2 _d_ 2 {values}\n")
    );
    assert_eq!(text(|out| it.io(out, &counters())), format!("_io_s_ {keys} {values}\n"));
    assert_eq!(text(|out| it.done(out, "reset", "")), format!("_reset_ {keys}\n"));
    assert_eq!(
        text(|out| it.version(out, "0.12.3-rc1")),
        "_ver_ _n_ 129.40.6.193 _nn_ x36i01 _v_ 0 _lv_ 12 _vt_ 3\n"
    );
    let it = head(false, (1_066_660_148, 407_431));
    let expected = "\
mmpmon node 129.40.6.193 name x36i01 fs_io_s OK
cluster:        cl1.cluster.net
filesystem:     fs2
disks:                             2
timestamp:         1066660148/407431
bytes read:                  6291456
bytes written:             314572800
opens:                            10
closes:                           16
reads:                           101
writes:                          300
readdir:                           7
inode updates:                     2
";
    assert_eq!(text(|out| it.fs_io(out, &fs)), expected);
    assert_eq!(
        text(|out| it.done(out, "reset", "")),
        "mmpmon node 129.40.6.193 name x36i01 reset OK\n"
    );
}

#[test]
fn the_list_of_nodes_looks_as_documented() {
    let (programs, people) = (head(true, (1, 2)), head(false, (1, 2)));
    let line = "_nlist_ _n_ 129.40.6.193 _nn_ x36i01 _req_ s _rc_ 0 _t_ 1 _tu_ 2";
    let nodes = [("x36i01".to_owned(), "129.40.6.193".to_owned())];
    assert_eq!(text(|out| programs.nodes(out, &[])), format!("{line} _c_ 0\n"));
    assert_eq!(
        text(|out| programs.nodes(out, &nodes)),
        format!("{line} _c_ 1\n{line} _mbr_ x36i01 _ip_ 129.40.6.193\n")
    );
    let title = "mmpmon node 129.40.6.193 name x36i01 nlist s status 0\n";
    assert_eq!(
        text(|out| people.nodes(out, &[])),
        format!("{title}name count 0\ntimestamp 1/2\nthe node list is empty\n")
    );
    assert_eq!(
        text(|out| people.nodes(out, &nodes)),
        format!("{title}name count 1\ntimestamp 1/2\nnode name x36i01, IP address 129.40.6.193\n")
    );
}
