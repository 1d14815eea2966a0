//! What an agent refuses, and that no request makes it panic.

use std::fs;
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;
use crate::io::phase::phase_test::phase;
use crate::pattern::Dice;
use crate::scratch::fresh_name;
use strake_net::Stream;

fn assignment() -> Assignment {
    Assignment { work: Work::Io(phase()), first_rank: 0, tasks_here: 2, tasks_total: 4 }
}

#[test]
fn limits_hold() {
    let limits = Limits { tasks_max: 4, bytes_max: 1 << 20 };
    assert!(admit(&assignment(), &limits).is_ok());
    let refused = |change: fn(&mut Assignment)| {
        let mut assignment = assignment();
        change(&mut assignment);
        admit(&assignment, &limits).is_err()
    };
    assert!(refused(|assignment| assignment.tasks_here = 0));
    assert!(refused(|assignment| assignment.tasks_here = 5));
    assert!(refused(|assignment| assignment.first_rank = 3));
    assert!(refused(|assignment| assignment.first_rank = u32::MAX));
    assert!(refused(|assignment| {
        let mut phase = phase();
        phase.records = 1 << 20;
        assignment.work = Work::Io(phase);
    }));
    assert!(refused(|assignment| {
        let mut phase = phase();
        phase.files = Files::Named("/etc/passwd".into());
        assignment.work = Work::Io(phase);
    }));
    assert!(refused(|assignment| {
        let mut phase = phase();
        phase.stonewall_seconds = Some(f64::NAN);
        assignment.work = Work::Io(phase);
    }));
}

#[test]
fn only_directories_below_the_root_are_opened() {
    let top = std::env::temp_dir().canonicalize().unwrap().join(fresh_name());
    let (root, beside) = (top.join("root"), top.join("root-beside"));
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::create_dir(&beside).unwrap();
    fs::write(root.join("file"), "").unwrap();
    std::os::unix::fs::symlink(&beside, root.join("out")).unwrap();
    std::os::unix::fs::symlink("a/b", root.join("in")).unwrap();
    assert_eq!(resolve(&root, ".").unwrap(), root);
    assert_eq!(resolve(&root, "a/b").unwrap(), root.join("a/b"));
    assert_eq!(resolve(&root, "in").unwrap(), root.join("a/b"));
    assert_eq!(resolve(&root, root.join("a").to_str().unwrap()).unwrap(), root.join("a"));
    for outside in ["..", "a/../..", "out", "/", "/etc", "missing", "file"] {
        assert!(resolve(&root, outside).is_err(), "{outside}");
    }
    assert!(resolve(&root, beside.to_str().unwrap()).is_err());
    fs::remove_dir_all(top).unwrap();
}

/// Requests, whole ones and mutated ones, in any order: the session answers or ends, and leaves
/// its directory empty.
#[test]
fn no_sequence_of_requests_breaks_a_session() {
    let root = std::env::temp_dir().canonicalize().unwrap().join(fresh_name());
    fs::create_dir(&root).unwrap();
    for seed in 0..150 {
        let mut dice = Dice::new(seed);
        let (near, far) = UnixStream::pair().unwrap();
        let session_root = Root::Below {
            directory: root.clone(),
            secret: SharedSecret::of_words(b"a secret of the test"),
            registry: Arc::default(),
        };
        let server = thread::spawn(move || {
            let mut channel = Channel::with_child(Stream::Unix(far));
            let limits = Limits { tasks_max: 4, bytes_max: 1 << 20 };
            Session::new(&mut channel, session_root, limits, &Stop::default()).run()
        });
        let mut caller = Channel::with_child(Stream::Unix(near));
        for _ in 0..dice.below(8) {
            let request = match dice.below(8) {
                0 => Request::Facts,
                1 | 2 => Request::Open { directory: ".".into(), scratch: fresh_name() },
                3 => Request::Begin(assignment()),
                4 => Request::Release,
                5 => Request::Tidy,
                6 => Request::Mark,
                _ => Request::Cancel,
            };
            let mut text = serde_json::to_string(&request).unwrap().into_bytes();
            if dice.below(3) == 0 {
                let victim = dice.below(text.len() as u64) as usize;
                text[victim] = b"0123456789\"{}[],:x"[dice.below(18) as usize];
            }
            let text = String::from_utf8(text).unwrap();
            let sent = match serde_json::from_str::<serde_json::Value>(&text) {
                Ok(value) => caller.send(&value),
                Err(_) => caller.send(&text),
            };
            if sent.is_err() || answer_of(&mut caller).is_err() {
                break;
            }
        }
        drop(caller);
        // An error is a legitimate end; a panic is not.
        let _ = server.join().unwrap_or_else(|_| panic!("seed {seed}: the session panicked"));
        let left: Vec<_> = fs::read_dir(&root).unwrap().collect();
        assert!(left.is_empty(), "seed {seed}: {left:?}");
    }
    fs::remove_dir(root).unwrap();
}

/// The next answer that is not progress.
fn answer_of(caller: &mut Channel) -> Result<Answer> {
    loop {
        match caller.receive()? {
            Answer::Progress { .. } => {}
            answer => return Ok(answer),
        }
    }
}
