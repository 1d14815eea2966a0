//! Metadata sessions: entries apply once, and survive a server that forgets.

use super::*;
use crate::Rng;
use crate::rpc::rpc_test::{Folder, Gate, PATIENT, bind_after, env, secret};
use std::sync::atomic::Ordering::SeqCst;
use strake_proto::meta::{Counts, MetaOp};
use strake_proto::{ClientId, GrantNumber, Timestamp};

/// Metadata whose state is the list of applied sequences. A reply tells its place in the list, so
/// an entry that is applied twice or out of order is seen.
#[derive(Default)]
struct ListMeta {
    state: Mutex<ListState>,
    gate: Gate,
    /// Whether changes wait at the gate after they were applied.
    gated: std::sync::atomic::AtomicBool,
    long: bool,
}

#[derive(Default)]
struct ListState {
    applied: Vec<u64>,
    durable: usize,
}

impl ListMeta {
    /// What a crash leaves: the durable entries.
    fn crash(&self) {
        let mut state = self.state.lock();
        let durable = state.durable;
        state.applied.truncate(durable);
    }
}

fn grant(count: usize) -> MetaReply {
    MetaReply::Session { grant: GrantNumber(count as u64) }
}

impl MetaPort for ListMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        if self.long && matches!(query, MetaQuery::ReadDir { .. }) {
            let entry = |cookie| strake_proto::meta::DirEntry {
                cookie,
                name: vec![b'n'; 200],
                ino: strake_proto::Ino(cookie),
                file_type: strake_proto::FileType::Regular,
                inode: None,
            };
            return Ok(MetaReply::Entries { entries: (3..40_003).map(entry).collect(), end: true });
        }
        if self.long {
            return Ok(MetaReply::Bytes(vec![0; 5 << 20]));
        }
        let inodes = self.state.lock().applied.len() as u64;
        Ok(MetaReply::Counts(Counts { inodes, ..Counts::default() }))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let reply = {
            let mut state = self.state.lock();
            match state.applied.iter().rfind(|sequence| **sequence > 0).copied() {
                Some(last) if entry.sequence > 0 && entry.sequence < last => {
                    return Err(Error::new(ErrorKind::Stale, "an old entry"));
                }
                Some(last) if entry.sequence == last => {}
                _ => state.applied.push(entry.sequence),
            }
            grant(state.applied.len())
        };
        if self.gated.load(SeqCst) {
            self.gate.pass();
        }
        Ok(reply)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.durable = state.applied.len();
        Ok(())
    }
}

fn serve(folder: &Folder, port: &Arc<ListMeta>, boot: u64) -> RpcServer {
    let listener = bind_after(&folder.socket());
    let port = Arc::clone(port) as Arc<dyn MetaPort>;
    serve_meta(listener, port, secret(), ServerOptions::new(boot)).expect("threads")
}

fn session(folder: &Folder) -> MetaClientSession {
    MetaClientSession::new(folder.socket(), PATIENT, env())
}

fn entry(sequence: u64) -> MetaEntry {
    MetaEntry { client: ClientId(1), sequence, time: Timestamp::default(), op: MetaOp::Join }
}

fn count(port: &dyn MetaPort) -> u64 {
    match port.query(&MetaQuery::Counts).expect("answered") {
        MetaReply::Counts(counts) => counts.inodes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_entry_that_a_dying_server_applied_is_not_applied_again() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    port.gated.store(true, SeqCst);
    let server = serve(&folder, &port, 1);
    let session = session(&folder);
    crate::thread::scope(|scope| {
        let caller = scope.spawn(|| session.apply(&entry(1)));
        port.gate.wait_for_callers(1);
        let stopping = scope.spawn(|| server.stop());
        let _again = serve(&folder, &port, 2);
        // The dying server is in the call until the next one has it as well.
        port.gate.wait_for_callers(2);
        port.gate.open();
        stopping.join().expect("no panic");
        assert_eq!(caller.join().expect("no panic").expect("applied"), grant(1));
        assert_eq!(session.apply(&entry(2)).expect("applied"), grant(2));
    });
    assert_eq!(port.state.lock().applied, [1, 2]);
}

#[test]
fn entries_that_a_crash_lost_are_replayed_before_anything_else() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let mut server = serve(&folder, &port, 1);
    let session = session(&folder);
    for sequence in 1..=5 {
        session.apply(&entry(sequence)).expect("applied");
    }
    session.sync().expect("synced");
    for (boot, durable) in [(2, None), (3, Some(7)), (4, Some(8))] {
        let applied = port.state.lock().applied.len() as u64;
        for sequence in applied + 1..=8 {
            session.apply(&entry(sequence)).expect("applied");
        }
        server.stop();
        // The log may have reached the disk further than the last sync.
        if let Some(durable) = durable {
            port.state.lock().durable = durable;
        }
        port.crash();
        server = serve(&folder, &port, boot);
        assert_eq!(count(&session), 8, "boot {boot}");
        assert_eq!(port.state.lock().applied, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    session.sync().expect("synced");
    server.stop();
    port.crash();
    let _server = serve(&folder, &port, 5);
    assert_eq!(count(&session), 8);
    assert_eq!(session.apply(&entry(9)).expect("applied"), grant(9));
}

#[test]
fn a_replay_with_another_outcome_ends_the_session() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let session = session(&folder);
    session.apply(&entry(1)).expect("applied");
    server.stop();
    port.crash();
    // Somebody else's change took the place of the one that was lost.
    port.state.lock().applied.push(0);
    let _server = serve(&folder, &port, 2);
    for _ in 0..2 {
        let error = session.query(&MetaQuery::Counts).expect_err("the client was told otherwise");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("mount again"), "{error}");
    }
    assert_eq!(session.apply(&entry(2)).expect_err("over").kind(), ErrorKind::Io);
    assert_eq!(session.sync().expect_err("over").kind(), ErrorKind::Io);
}

#[test]
fn an_uncounted_entry_is_never_repeated() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    port.gated.store(true, SeqCst);
    let server = serve(&folder, &port, 1);
    let session = session(&folder);
    crate::thread::scope(|scope| {
        let caller = scope.spawn(|| session.apply(&entry(0)));
        port.gate.wait_for_callers(1);
        let stopping = scope.spawn(|| server.stop());
        let _again = serve(&folder, &port, 2);
        let error = caller.join().expect("no panic").expect_err("its fate is unknown");
        port.gate.open();
        stopping.join().expect("no panic");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
    assert_eq!(port.state.lock().applied, [0]);
}

#[test]
fn listings_too_long_for_a_message_are_cut_and_other_answers_refused() {
    let folder = Folder::new();
    let port = Arc::new(ListMeta { long: true, ..ListMeta::default() });
    let _server = serve(&folder, &port, 1);
    let session = session(&folder);
    let query = MetaQuery::ReadDir {
        dir: strake_proto::Ino::ROOT,
        after: 0,
        limit: u32::MAX,
        with_inodes: false,
    };
    let Ok(MetaReply::Entries { entries, end }) = session.query(&query) else {
        panic!("a listing")
    };
    assert!(entries.len() > 1000 && entries.len() < 40_000 && !end);
    assert_eq!(entries[0].cookie, 3);
    let error = session.query(&MetaQuery::Counts).expect_err("5 MiB");
    assert_eq!(error.kind(), ErrorKind::TooBig);
}

#[test]
fn changes_of_many_threads_stay_in_order_when_the_caller_numbers_them_in_order() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let _server = serve(&folder, &port, 1);
    let session = session(&folder);
    let next = Mutex::new(1);
    crate::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..50 {
                    let mut next = next.lock();
                    session.apply(&entry(*next)).expect("applied");
                    *next += 1;
                    drop(next);
                    if round % 10 == 0 {
                        session.sync().expect("synced");
                    }
                    count(&session);
                }
            });
        }
    });
    assert_eq!(port.state.lock().applied, (1..=200).collect::<Vec<u64>>());
}

#[test]
fn mutated_requests_are_answered_or_end_the_connection() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let seed = 78;
    let mut rng = Rng::new(seed);
    let open = || {
        Connection::open(&folder.socket(), &secret(), Service::Meta, PATIENT.connect)
            .expect("a friend")
    };
    let mut connection = open();
    let (mut answered, mut ended) = (0, 0);
    for _ in 0..1000 {
        let mut message = vec![rng.below(4) as u8];
        message.extend(
            match rng.index(2) {
                0 => {
                    encode(&MetaQuery::GetXattr { ino: strake_proto::Ino(1), name: vec![b'x'; 20] })
                }
                _ => encode(&entry(rng.below(300))),
            }
            .expect("encodes"),
        );
        for _ in 0..rng.index(3) {
            let at = rng.index(message.len());
            message[at] = rng.next_u64() as u8;
        }
        match connection.call(FrameKind::MetaRequest, &message, &[], PATIENT.call) {
            Ok(_) => answered += 1,
            Err(CallError::Lost(_)) => {
                ended += 1;
                connection = open();
            }
            Err(CallError::Failed(error)) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(answered > 100 && ended > 100, "{answered} answered, {ended} ended");
    drop(connection);
    server.stop();
}
