//! Metadata sessions: entries apply once, and survive a server that forgets.

use super::*;
use crate::journal::Rule;
use crate::net_test::{
    Folder, Gate, PATIENT, bind_after, credentials, env, introduction, over_certificates,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use strake_env::{Clock, RealClock, Rng};
use strake_proto::limits::WINDOW_CHANGES;
use strake_proto::meta::{AttrChange, Counts, FileData, Inode};
use strake_proto::{Attr, ClientId, FileType, Generation, GrantNumber, Ino, Timestamp};

/// Metadata whose state is the list of applied changes. A reply tells its place in the list, so a
/// change that is applied twice or in another order is seen.
#[derive(Default)]
pub(crate) struct ListMeta {
    pub(crate) state: Mutex<ListState>,
    pub(crate) gate: Gate,
    /// Whether changes wait at the gate after they were applied.
    pub(crate) gated: std::sync::atomic::AtomicBool,
    /// Whether changes take a random time before and after they are applied.
    pub(crate) slow: bool,
    pub(crate) long: bool,
}

#[derive(Default)]
pub(crate) struct ListState {
    /// The times of entries, by which tests tell them apart; below 0 for refused ones.
    pub(crate) applied: Vec<i64>,
    /// The state after each change: the oldest that the client needs, and the answers from there.
    answers: Vec<Answers>,
    pub(crate) durable: usize,
}

#[derive(Clone, Default)]
struct Answers {
    life: u64,
    oldest: u64,
    kept: BTreeMap<u64, CountedAnswer>,
}

impl ListMeta {
    /// What a crash leaves: the durable changes, and `more` of the others.
    pub(crate) fn crash(&self, more: usize) {
        let mut state = self.state.lock();
        state.durable = (state.durable + more).min(state.applied.len());
        let durable = state.durable;
        state.applied.truncate(durable);
        state.answers.truncate(durable);
    }

    /// A crash that leaves a random part of what was not durable.
    pub(crate) fn lose_some(&self, rng: &mut Rng) {
        let unsynced = {
            let state = self.state.lock();
            state.applied.len() - state.durable
        };
        self.crash(rng.index(unsynced + 1));
    }

    fn rest(&self) {
        if self.slow {
            let mut rng = Rng::from_entropy().expect("random bytes");
            RealClock.sleep(Duration::from_micros(rng.below(300)));
        }
    }

    pub(crate) fn applied(&self) -> Vec<i64> {
        self.state.lock().done()
    }
}

impl ListState {
    /// What was not refused.
    fn done(&self) -> Vec<i64> {
        self.applied.iter().copied().filter(|number| *number >= 0).collect()
    }
}

pub(crate) fn grant(count: usize) -> MetaReply {
    MetaReply::Session { grant: GrantNumber(count as u64) }
}

/// A file of so many bytes, written at the second of that number.
fn inode(bytes: u64, permissions: u32) -> MetaReply {
    let time = Timestamp { seconds: bytes as i64, nanos: 0 };
    let attr = Attr {
        ino: Ino(3),
        generation: Generation(1),
        file_type: FileType::Regular,
        permissions,
        links: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: bytes,
        allocated: bytes,
        atime: Timestamp::default(),
        mtime: time,
        ctime: time,
        btime: Timestamp::default(),
    };
    let (data, parent) = (FileData::Empty, Ino(0));
    MetaReply::Inode(Box::new(Inode { attr, data, parent, has_acl: false, has_xattrs: false }))
}

impl MetaPort for ListMeta {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        if self.long && matches!(query, MetaQuery::ReadDir { .. }) {
            let entry = |cookie| strake_proto::meta::DirEntry {
                cookie,
                name: vec![b'n'; 200],
                ino: Ino(cookie),
                file_type: FileType::Regular,
                inode: None,
            };
            return Ok(MetaReply::Entries { entries: (3..40_003).map(entry).collect(), end: true });
        }
        if self.long {
            return Ok(MetaReply::Bytes(vec![0; 5 << 20]));
        }
        let inodes = self.applied().len() as u64;
        Ok(MetaReply::Counts(Counts { inodes, ..Counts::default() }))
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let reply = {
            let mut state = self.state.lock();
            state.applied.push(entry.time.seconds);
            let answers = state.answers.last().cloned().unwrap_or_default();
            state.answers.push(answers);
            grant(state.done().len())
        };
        if self.gated.load(SeqCst) {
            self.gate.pass();
        }
        Ok(reply)
    }

    fn apply_counted(&self, counted: &CountedEntry) -> Result<CountedAnswer> {
        self.rest();
        let answer = {
            let mut state = self.state.lock();
            let mut answers = state.answers.last().cloned().unwrap_or_default();
            let sequence = counted.entry.sequence;
            if matches!(counted.entry.op, MetaOp::Join) && answers.life != counted.life {
                answers = Answers { life: counted.life, oldest: 1, ..Answers::default() };
            }
            if answers.life != counted.life {
                return Err(Error::new(ErrorKind::Fenced, "another life"));
            }
            if sequence < answers.oldest {
                return Err(Error::new(ErrorKind::Stale, "an old change"));
            }
            match answers.kept.get(&sequence) {
                Some(answer) => answer.clone(),
                None => {
                    answers.oldest = answers.oldest.max(counted.oldest);
                    answers.kept = answers.kept.split_off(&answers.oldest);
                    assert!(sequence - answers.oldest < WINDOW_CHANGES, "the window is kept");
                    let number = counted.entry.time.seconds;
                    let is_refused = matches!(counted.entry.op, MetaOp::SetConfig { .. });
                    state.applied.push(if is_refused { -number } else { number });
                    let position = state.applied.len() as u64;
                    let count = state.done().len();
                    let outcome = match counted.entry.op {
                        _ if is_refused => Err(ErrorKind::Exists.into()),
                        MetaOp::Update { .. } => Ok(inode(count as u64, 0o600)),
                        _ => Ok(grant(count)),
                    };
                    let answer = CountedAnswer { position, outcome };
                    answers.kept.insert(sequence, answer.clone());
                    state.answers.push(answers);
                    answer
                }
            }
        };
        self.rest();
        if self.gated.load(SeqCst) {
            self.gate.pass();
        }
        Ok(answer)
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
    serve_meta(listener, port, credentials(), ServerOptions::new(boot)).expect("threads")
}

fn session(folder: &Folder) -> MetaClientSession {
    MetaClientSession::new(folder.socket(), PATIENT, env())
}

pub(crate) fn entry(number: i64) -> MetaEntry {
    let op = MetaOp::Reap { ino: Ino(1) };
    let time = Timestamp { seconds: number, nanos: 0 };
    MetaEntry { client: ClientId(1), sequence: 0, time, op }
}

/// A session that has joined: the first change in the list is number 0.
fn joined(folder: &Folder) -> MetaClientSession {
    let session = session(folder);
    let join = MetaEntry { op: MetaOp::Join, ..entry(0) };
    session.apply(&join).expect("joins");
    session
}

fn count(port: &dyn MetaPort) -> u64 {
    match port.query(&MetaQuery::Counts).expect("answered") {
        MetaReply::Counts(counts) => counts.inodes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_that_a_dying_server_applied_is_not_applied_again() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let session = joined(&folder);
    port.gated.store(true, SeqCst);
    strake_env::thread::scope(|scope| {
        let caller = scope.spawn(|| session.apply(&entry(1)));
        port.gate.wait_for_callers(1);
        let stopping = scope.spawn(|| server.stop());
        let _again = serve(&folder, &port, 2);
        // The dying server is in the call until the next one has it as well.
        port.gate.wait_for_callers(2);
        port.gate.open();
        stopping.join().expect("no panic");
        assert_eq!(caller.join().expect("no panic").expect("applied"), grant(2));
        assert_eq!(session.apply(&entry(2)).expect("applied"), grant(3));
    });
    assert_eq!(port.applied(), [0, 1, 2]);
}

#[test]
fn changes_that_a_crash_lost_are_replayed_before_anything_else() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let mut server = serve(&folder, &port, 1);
    let session = joined(&folder);
    for number in 1..=5 {
        session.apply(&entry(number)).expect("applied");
    }
    session.sync().expect("synced");
    for (boot, more) in [(2, 0), (3, 2), (4, 1)] {
        for number in port.applied().len() as i64..=8 {
            session.apply(&entry(number)).expect("applied");
        }
        server.stop();
        // The log may have reached the disk further than the last sync.
        port.crash(more);
        server = serve(&folder, &port, boot);
        assert_eq!(count(&session), 9, "boot {boot}");
        assert_eq!(port.applied(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    session.sync().expect("synced");
    server.stop();
    port.crash(0);
    let _server = serve(&folder, &port, 5);
    assert_eq!(count(&session), 9);
    assert_eq!(session.apply(&entry(9)).expect("applied"), grant(10));
}

#[test]
fn a_replay_with_another_outcome_ends_the_session() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let session = joined(&folder);
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    session.when_over(move |error| hears.lock().push(error.to_string()));
    session.sync().expect("synced");
    session.apply(&entry(1)).expect("applied");
    server.stop();
    port.crash(0);
    // Somebody else's change took the place of the one that was lost.
    port.apply(&entry(77)).expect("applied");
    let _server = serve(&folder, &port, 2);
    for _ in 0..2 {
        let error = session.query(&MetaQuery::Counts).expect_err("the client was told otherwise");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("mount again"), "{error}");
    }
    assert_eq!(session.apply(&entry(2)).expect_err("over").kind(), ErrorKind::Io);
    assert_eq!(session.sync().expect_err("over").kind(), ErrorKind::Io);
    let told = told.lock();
    assert!(matches!(told.as_slice(), [one] if one.contains("another outcome")), "{told:?}");
}

fn update() -> MetaOp {
    let (ino, data, mtime, ctime) = (Ino(3), None, None, None);
    MetaOp::Update { ino, size: 1, data, allocated_delta: 1, mtime, ctime }
}

/// Two clients may write one file beside each other, so the reply to one says what the other has
/// written. After a crash either of them may come first.
#[test]
fn updates_of_a_file_that_others_write_are_replayed_in_any_order() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let session = joined(&folder);
    session.sync().expect("synced");
    let told = session.apply(&MetaEntry { op: update(), ..entry(1) }).expect("applied");
    assert_eq!(told, inode(2, 0o600));
    server.stop();
    port.crash(0);
    // The other one's change is there already.
    port.apply(&entry(77)).expect("applied");
    let _server = serve(&folder, &port, 2);
    assert_eq!(count(&session), 3, "the session goes on");
    assert_eq!(port.applied(), [0, 77, 1]);
}

#[test]
fn other_parts_of_replies_are_compared() {
    let before = Print::new(&inode(1, 0o600), Repeats::of(&update()));
    assert!(before.is_of(&inode(2, 0o600)));
    assert!(!before.is_of(&inode(1, 0o644)), "nobody else may change that");
    let change = MetaOp::SetAttr { ino: Ino(3), change: AttrChange::default() };
    let before = Print::new(&inode(1, 0o600), Repeats::of(&change));
    assert!(before.is_of(&inode(1, 0o600)) && !before.is_of(&inode(2, 0o600)));
}

#[test]
fn a_change_whose_caller_gave_up_is_applied_once_all_the_same() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let impatient = SessionLimits {
        call: Duration::from_millis(300),
        broken: Duration::ZERO,
        absent: Duration::from_secs(20),
        ..PATIENT
    };
    let session = MetaClientSession::new(folder.socket(), impatient, env());
    session.apply(&MetaEntry { op: MetaOp::Join, ..entry(0) }).expect("joins");
    port.gated.store(true, SeqCst);
    let error = session.apply(&entry(1)).expect_err("nobody answers");
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable), "{error}");
    port.gated.store(false, SeqCst);
    assert_eq!(session.apply(&entry(2)).expect("applied"), grant(3));
    port.gate.open();
    assert_eq!(port.applied(), [0, 1, 2]);
    drop(server);
}

#[test]
fn a_session_has_one_life() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let _server = serve(&folder, &port, 1);
    let first = joined(&folder);
    let again = first.apply(&MetaEntry { op: MetaOp::Join, ..entry(0) });
    assert_eq!(again.expect_err("one life").kind(), ErrorKind::Invalid);
    let second = joined(&folder);
    let error = first.apply(&entry(1)).expect_err("closed by the second");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(second.apply(&entry(2)).expect("applied"), grant(3));
}

fn is_refused(change: i64) -> bool {
    change % 7 == 3
}

/// What a caller was told: each change that was applied, and its place in the list.
pub(crate) type Told = Vec<(i64, u64)>;

/// The work of one caller: `changes` changes of which some are refused, syncs between them, and
/// questions if it `asks`. Every second caller sends many changes at once.
///
/// # Errors
/// A call that fails.
pub(crate) fn work(
    session: &MetaClientSession,
    caller: i64,
    changes: i64,
    asks: bool,
) -> std::result::Result<Told, String> {
    let make = |at| {
        let mut change = entry(1 + caller * 1000 + at);
        if is_refused(at) {
            let (name, value) = (String::new(), String::new());
            change.op = MetaOp::SetConfig { name, value };
        }
        change
    };
    let mut told = Vec::new();
    let together = if caller % 2 == 1 { TOGETHER_MAX as i64 + 5 } else { 1 };
    for from in (0..changes).step_by(together as usize) {
        let upto = changes.min(from + together);
        let mut some: Vec<MetaEntry> = (from..upto).map(make).collect();
        while !some.is_empty() {
            let results = match some.as_slice() {
                [one] => vec![session.apply(one)],
                many => session.apply_all(many),
            };
            if results.len() != some.len() {
                return Err(format!("{} results for {} changes", results.len(), some.len()));
            }
            let mut left = Vec::new();
            for (change, result) in some.into_iter().zip(results) {
                match result {
                    Ok(MetaReply::Session { grant }) => told.push((change.time.seconds, grant.0)),
                    Err(error) if error.kind() == ErrorKind::Exists => {}
                    Err(error) if error.kind() == ErrorKind::Busy => left.push(change),
                    other => return Err(format!("{change:?}: {other:?}")),
                }
            }
            some = left;
        }
        if (from..upto).any(|at| at % 17 == 16) {
            session.sync().map_err(|error| format!("sync: {error}"))?;
        }
        if asks && (from..upto).any(|at| at % 13 == 12) {
            session.query(&MetaQuery::Counts).map_err(|error| format!("query: {error}"))?;
        }
    }
    Ok(told)
}

/// Compares what is durable with what each of the callers of [`work`] was told.
///
/// # Errors
/// Something was lost, applied twice, or is in another place.
pub(crate) fn judge(
    list: &ListMeta,
    told: Vec<Told>,
    changes: i64,
) -> std::result::Result<(), String> {
    list.crash(0);
    let applied = list.applied();
    let mut once = applied.clone();
    once.sort_unstable();
    once.dedup();
    let of_each = (0..changes).filter(|at| !is_refused(*at)).count();
    // The session has joined before.
    if once.len() != applied.len() || applied.len() != 1 + told.len() * of_each {
        return Err(format!("{} changes, {} of them once", applied.len(), once.len()));
    }
    for (number, place) in told.into_iter().flatten() {
        if applied[place as usize - 1] != number {
            return Err(format!("change {number} is not at {place} as it was told"));
        }
    }
    Ok(())
}

/// Callers at work while the server dies again and again, each time with a part of what was not
/// synced. Returns what is wrong in the end.
fn restarts(seed: u64, without: Option<Rule>) -> std::result::Result<(), String> {
    const CALLERS: i64 = 6;
    const CHANGES: i64 = 120;
    const KILLS: u64 = 12;
    let (folder, port) = (Folder::new(), Arc::new(ListMeta { slow: true, ..ListMeta::default() }));
    let mut rng = Rng::new(seed);
    let mut server = Some(serve(&folder, &port, 1));
    let session = joined(&folder);
    session.sync().expect("synced");
    session.journal.lock().without = without;
    let outcome = strake_env::thread::scope(|scope| {
        let session = &session;
        let work = |caller| scope.spawn(move || work(session, caller, CHANGES, false));
        let callers: Vec<_> = (0..CALLERS).map(work).collect();
        for boot in 2..2 + KILLS {
            RealClock.sleep(Duration::from_micros(rng.below(20_000)));
            drop(server.take());
            port.lose_some(&mut rng);
            server = Some(serve(&folder, &port, boot));
        }
        let ended = callers.into_iter().map(|caller| caller.join().expect("no panic"));
        ended.collect::<std::result::Result<Vec<Told>, String>>()
    });
    let judged = outcome.and_then(|told| {
        session.sync().expect("synced");
        drop(server);
        judge(&port, told, CHANGES)
    });
    judged.map_err(|fault| format!("seed {seed}: {fault}"))
}

#[test]
fn changes_under_way_survive_servers_that_die_and_forget() {
    for seed in strake_env::rng::test_seeds(0, 6) {
        restarts(seed, None).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

#[test]
fn every_rule_of_the_journal_is_needed() {
    for rule in [Rule::ReplayInOrder, Rule::OldestIsOpen] {
        let found = (0..40).find_map(|seed| restarts(seed, Some(rule)).err());
        println!("{rule:?}: {}", found.unwrap_or_else(|| panic!("the loss of {rule:?} is found")));
    }
}

#[test]
fn a_full_window_and_a_full_journal_make_callers_wait() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let _server = serve(&folder, &port, 1);
    let session = joined(&folder);
    port.gated.store(true, SeqCst);
    let session = &session;
    strake_env::thread::scope(|scope| {
        let callers: Vec<_> = (1..=WINDOW_CHANGES as i64 + 8)
            .map(|number| scope.spawn(move || session.apply(&entry(number)).expect("applied")))
            .collect();
        port.gate.wait_for_callers(1);
        port.gate.open();
        callers.into_iter().for_each(|caller| drop(caller.join().expect("no panic")));
    });
    // Answered and not synced: more than the journal takes.
    for number in 100..20_000 {
        session.apply(&entry(number)).expect("applied");
    }
    assert!(port.state.lock().durable > 0, "the journal was synced away");
}

#[test]
fn an_uncounted_entry_is_never_repeated() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    port.gated.store(true, SeqCst);
    let server = serve(&folder, &port, 1);
    let session = session(&folder);
    strake_env::thread::scope(|scope| {
        let caller = scope.spawn(|| session.apply(&entry(1)));
        port.gate.wait_for_callers(1);
        let stopping = scope.spawn(|| server.stop());
        let _again = serve(&folder, &port, 2);
        let error = caller.join().expect("no panic").expect_err("its fate is unknown");
        port.gate.open();
        stopping.join().expect("no panic");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
    assert_eq!(port.applied(), [1]);
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
fn mutated_requests_are_answered_or_end_the_connection() {
    let (folder, port) = (Folder::new(), Arc::<ListMeta>::default());
    let server = serve(&folder, &port, 1);
    let seed = 78;
    let mut rng = Rng::new(seed);
    let open = || {
        Connection::open(&folder.socket(), &introduction(), Service::Meta, PATIENT.connect)
            .expect("a friend")
    };
    let mut connection = open();
    let (mut answered, mut ended) = (0, 0);
    for _ in 0..2000 {
        let mut message = vec![rng.below(6) as u8];
        message.extend(
            match rng.index(4) {
                2 => {
                    let counted = CountedEntry { life: 1, oldest: 1, entry: entry(1) };
                    encode(&vec![counted; rng.index(70)])
                }
                1 => {
                    encode(&CountedEntry { life: 1, oldest: 1, entry: entry(rng.below(9) as i64) })
                }
                0 => encode(&MetaQuery::GetXattr { ino: Ino(1), name: vec![b'x'; 20] }),
                _ => encode(&entry(rng.below(300) as i64)),
            }
            .expect("encodes"),
        );
        for _ in 0..rng.index(3) {
            let at = rng.index(message.len());
            message[at] = rng.next_u64() as u8;
        }
        match connection.call(FrameKind::MetaRequest, &message, &[], PATIENT.call) {
            Ok(_) => answered += 1,
            Err(CallError::Disconnected(_)) => {
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

#[test]
fn changes_are_counted_and_replayed_with_certificates_too() {
    over_certificates(&[
        a_change_that_a_dying_server_applied_is_not_applied_again,
        changes_that_a_crash_lost_are_replayed_before_anything_else,
        a_change_whose_caller_gave_up_is_applied_once_all_the_same,
        || restarts(1, None).expect("nothing is lost or applied twice"),
        a_full_window_and_a_full_journal_make_callers_wait,
        an_uncounted_entry_is_never_repeated,
        listings_too_long_for_a_message_are_cut_and_other_answers_refused,
        mutated_requests_are_answered_or_end_the_connection,
    ]);
}

#[test]
fn requests_that_take_no_time_are_told_by_their_first_bytes() {
    let handler = MetaHandler::for_all(Arc::new(ListMeta::default()));
    let is_short = |request: &MetaRequestRef<'_>| handler.is_short(&encode(request).expect("fits"));
    let query = |query: &MetaQuery| is_short(&MetaRequestRef::Query(query));
    let ino = Ino(1);
    assert!(query(&MetaQuery::Lookup { parent: ino, name: b"name".to_vec() }));
    assert!(query(&MetaQuery::LookupOrNext { parent: ino, name: b"name".to_vec(), limit: 9 }));
    assert!(query(&MetaQuery::GetInode { ino }));
    assert!(query(&MetaQuery::Counts));
    assert!(!query(&MetaQuery::Check) && !query(&MetaQuery::CheckAs { number: 1 }));
    assert!(!is_short(&MetaRequestRef::Sync));
    let (life, oldest, client, sequence, time) = (1, 1, 1, 1, Timestamp::default());
    let op = &MetaOp::Join;
    let counted = CountedEntryRef { life, oldest, client, sequence, time, op };
    assert!(is_short(&MetaRequestRef::Counted(counted)));
}

/// The message is the same as if the changes were encoded together.
#[test]
fn changes_that_are_sent_together_are_a_message_of_their_own() {
    let counted = |sequence| CountedEntry {
        life: 7,
        oldest: 1,
        entry: MetaEntry { sequence, ..entry(sequence as i64) },
    };
    let all: Vec<CountedEntry> = (1..=TOGETHER_MAX as u64).map(counted).collect();
    let message = |one: &CountedEntry| -> Message {
        let CountedEntry { life, oldest, entry: MetaEntry { client, sequence, time, op } } = one;
        let (client, life, oldest, sequence, time) = (client.0, *life, *oldest, *sequence, *time);
        let counted = CountedEntryRef { life, oldest, client, sequence, time, op };
        encode(&MetaRequestRef::Counted(counted)).expect("encodes").into()
    };
    let messages: Vec<Message> = all.iter().map(message).collect();
    let MetaRequest::Many(decoded) = decode(&together(messages.iter())).expect("decodes") else {
        panic!("another request");
    };
    assert_eq!(decoded, all);
    let handler = MetaHandler::for_all(Arc::new(ListMeta::default()));
    let message = together(messages[..2].iter());
    assert!(handler.is_short(&message) && handler.is_ordered(&message));
    let too_many = encode(&vec![counted(1); TOGETHER_MAX + 1]).expect("encodes");
    let refused = [vec![MANY], too_many].concat();
    let peer = ProvenPeer::Secret;
    let told = handler.handle(&peer, &refused, &[], Vec::new()).expect("an answer").message;
    let told: Result<Vec<Result<CountedAnswer>>> = decode(&told).expect("decodes");
    assert_eq!(told.expect_err("refused").kind(), ErrorKind::Invalid);
}
