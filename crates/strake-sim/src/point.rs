//! Points: the disks as a power cut at some moment left them, without the NSDs that were lost then.
//! Each point is recovered, judged, and used.
//!
//! A point's name is its position in the log and a number. Everything random in it follows from
//! these two and from the recording's seed.

use crate::history::READ_WRITE;
use crate::judge::{Found, Promise, judge, survey};
use crate::machine::{BLOCK_SIZE, Machine, Stack};
use crate::recording::Recording;
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use strake_client::vfs::Vfs;
use strake_env::disk::sim::{Event, Fate, Faults, PowerCuts, Sequence};
use strake_env::{Clock, Rng, SimDisk};
use strake_proto::nsd::NsdPort;
use strake_proto::{Caller, Ino, SlotIndex};

const ROOT: &Caller = &Caller::ROOT;

/// A point of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The last event before the power went.
    pub cut: u64,
    /// Which of the points at this position it is.
    pub number: u64,
}

/// What a run over points has looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Points looked at. No two have the same image and the same promise.
    pub points: u64,
    /// How many of the points had NSDs lost.
    pub with_losses: u64,
    /// How many had a second power cut, during recovery or after it.
    pub twice: u64,
    /// How many had the lost NSDs return, and others lost after that.
    pub returned: u64,
    /// How many had an old copy in the place of an NSD.
    pub old: u64,
    /// How many had NSDs fail or hang while in use and return, and others lost after that.
    pub failed: u64,
}

/// What becomes of unsynced writes on one disk.
#[derive(Clone, Copy)]
enum Medium {
    KeepsAll,
    LosesAll,
    Random,
    /// Keeps this many of the unsynced events and loses the rest, without reordering.
    Prefix(usize),
}

impl Medium {
    fn draw(rng: &mut Rng, unsynced: usize) -> Medium {
        match rng.below(5) {
            0 => Medium::KeepsAll,
            1 => Medium::LosesAll,
            2 => Medium::Prefix(rng.index(unsynced + 1)),
            _ => Medium::Random,
        }
    }

    fn fates(self, cuts: &PowerCuts, rng: &mut Rng) -> Vec<Fate> {
        cuts.unsynced()
            .enumerate()
            .map(|(at, event)| match self {
                Medium::KeepsAll => Fate::Kept,
                Medium::LosesAll => Fate::Lost,
                Medium::Prefix(kept) if at < kept => Fate::Kept,
                Medium::Prefix(_) => Fate::Lost,
                Medium::Random => match event {
                    Event::Write { bytes, .. } => Fate::random(rng, bytes.len()),
                    _ => Fate::random(rng, 512),
                },
            })
            .collect()
    }
}

/// What a power cut does to each disk. The witness's is the last.
struct Outcome {
    fates: Vec<Vec<Fate>>,
    /// The slots that are lost: a mask.
    away: u32,
    /// A slot whose disk is replaced by what it was at an earlier position.
    old: Option<(usize, u64)>,
}

impl Outcome {
    /// Draws an outcome. `stale` NSDs count among the NSDs that may be lost, even if they are not
    /// lost. `lives` goes from the beginning of the first life to that of the last. The product
    /// must recognise an NSD as old if it is as it was between the two.
    fn draw(
        cuts: &[PowerCuts],
        parity: usize,
        stale: u32,
        lives: std::ops::RangeInclusive<u64>,
        rng: &mut Rng,
    ) -> Outcome {
        // One outcome in six is a killed process: the disks keep everything.
        let killed = rng.one_in(6);
        let fates = cuts
            .iter()
            .map(|cuts| {
                let count = cuts.unsynced().count();
                let medium = if killed { Medium::KeepsAll } else { Medium::draw(rng, count) };
                medium.fates(cuts, rng)
            })
            .collect();
        let mut away = draw_away(cuts.len() - 1, parity, rng);
        for slot in 0..32 {
            if (away | stale).count_ones() as usize > parity {
                away &= !(1 << slot) | stale;
            }
        }
        let mut old = None;
        if ((away | stale).count_ones() as usize) < parity && rng.one_in(2) {
            let slot = rng.index(cuts.len() - 1);
            let (first, last) = (*lives.start(), *lives.end());
            if (away | stale) >> slot & 1 == 0 && first < last {
                old = Some((slot, first + rng.below(last - first + 1)));
            }
        }
        Outcome { fates, away, old }
    }

    fn fingerprint(&self, cuts: &[PowerCuts], promise: (usize, usize)) -> u64 {
        let mut hasher = DefaultHasher::new();
        promise.hash(&mut hasher);
        (self.away, self.old).hash(&mut hasher);
        for (at, (cuts, fates)) in cuts.iter().zip(&self.fates).enumerate() {
            if self.away >> at & 1 == 1 {
                continue;
            }
            cuts.synced().hash(&mut hasher);
            // Events lost at the end are as if they had never been sent.
            let last = fates.iter().rposition(|fate| *fate != Fate::Lost).map_or(0, |at| at + 1);
            for fate in &fates[..last] {
                match fate {
                    Fate::Kept => 1u8.hash(&mut hasher),
                    Fate::Lost => 2u8.hash(&mut hasher),
                    Fate::Torn(marks) => marks.hash(&mut hasher),
                }
            }
        }
        hasher.finish()
    }

    fn machine(self, recording: &Recording, cuts: &[PowerCuts], sequence: &Sequence) -> Machine {
        let mut images: Vec<_> = cuts
            .iter()
            .zip(self.fates)
            .map(|(cuts, fates)| {
                let mut fates = fates.into_iter();
                cuts.image_in(sequence, |_| fates.next().expect("one for each event"))
            })
            .collect();
        if let Some((slot, position)) = self.old {
            let (length, log) = &recording.logs[slot];
            let mut before = PowerCuts::of_log(*length, log.clone());
            before.advance(position);
            images[slot] = before.image_in(sequence, |_| Fate::Kept);
        }
        let witness = images.pop().expect("the witness's is the last");
        let disks = images.into_iter().map(Some).collect();
        Machine::new(recording.code, disks, witness).less(self.away)
    }
}

/// Draws up to `parity` slots, usually none or as many as allowed.
pub fn draw_away(count: usize, parity: usize, rng: &mut Rng) -> u32 {
    let lost = match rng.below(4) {
        0 => 0,
        1 => rng.index(parity + 1),
        _ => parity,
    };
    let mut slots: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut slots);
    slots[..lost].iter().fold(0, |mask, slot| mask | 1 << slot)
}

/// Looks at about `wanted` points of a recording, spread over all of its positions.
///
/// # Errors
/// The point that fails, and why.
pub fn run(recording: &Recording, wanted: u64) -> Result<Tally, (Point, String)> {
    let mut tally = Tally::default();
    let mut seen = HashSet::new();
    let mut cuts = recording.power_cuts();
    let positions: Vec<u64> = recording.positions().collect();
    let mut owed = 0;
    for (index, cut) in positions.iter().enumerate() {
        cuts.iter_mut().for_each(|one| one.advance(*cut));
        let up_to = |index: usize| wanted * index as u64 / positions.len() as u64;
        owed += up_to(index + 1) - up_to(index);
        let mut number = 0;
        // A position where little is unsynced has fewer different images than wanted. Later
        // positions that have more make up for them.
        while owed > 0 && number < 4 * (wanted / positions.len() as u64 + 1) {
            let point = Point { cut: *cut, number };
            number += 1;
            if look(recording, &cuts, point, &mut seen, &mut tally)? {
                owed -= 1;
            }
        }
    }
    Ok(tally)
}

/// Looks at one point.
///
/// # Errors
/// Why it fails.
pub fn replay(recording: &Recording, point: Point) -> Result<(), String> {
    let mut cuts = recording.power_cuts();
    cuts.iter_mut().for_each(|one| one.advance(point.cut));
    let looked = look(recording, &cuts, point, &mut HashSet::new(), &mut Tally::default());
    looked.map(|_| ()).map_err(|(_, fault)| fault)
}

/// Looks at a point. Returns false if an equal point was looked at before.
fn look(
    recording: &Recording,
    cuts: &[PowerCuts],
    point: Point,
    seen: &mut HashSet<u64>,
    tally: &mut Tally,
) -> Result<bool, (Point, String)> {
    let mut rng = Rng::new(recording.seed ^ point.cut << 24 ^ point.number << 48);
    let begun = recording.marks.iter().take_while(|mark| mark.begin < point.cut).count();
    let stale = recording.marks[begun.max(1) - 1].away;
    let parity = usize::from(recording.code.parity);
    let outcome = Outcome::draw(cuts, parity, stale, lives(recording, point.cut), &mut rng);
    let done = recording.marks.iter().filter(|mark| mark.end <= point.cut).count();
    if !seen.insert(outcome.fingerprint(cuts, (begun, done))) {
        return Ok(false);
    }
    let (away, old) = (outcome.away, outcome.old);
    // The NSDs that are lost or count as lost. The code's parity limits how many more may fail.
    let bad = away | stale | old.map_or(0, |(slot, _)| 1 << slot);
    tally.points += 1;
    tally.old += u64::from(old.is_some());
    tally.with_losses += u64::from(away != 0);
    let sequence = Sequence::default();
    let machine = outcome.machine(recording, cuts, &sequence);
    let promise = Promise::at(&recording.marks, &recording.contents, &recording.times, point.cut);
    let result = catch_unwind(AssertUnwindSafe(|| visit(&machine, &promise, bad, &mut rng, tally)));
    let fault = match result {
        Ok(Ok(())) => return Ok(true),
        Ok(Err(fault)) => fault,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(text) => format!("panicked: {text}"),
            None => "panicked; the message is above".to_owned(),
        },
    };
    let old = old.map_or(String::new(), |(slot, at)| format!(", slot {slot} as it was at {at}"));
    Err((point, format!("NSDs away (mask {away:#b}){old}: {fault}")))
}

/// The positions from the end of the format to the beginning of the last life that had begun at
/// `cut`.
fn lives(recording: &Recording, cut: u64) -> std::ops::RangeInclusive<u64> {
    let begun = recording.marks.iter().filter(|mark| mark.begins_life && mark.end <= cut);
    let last = begun.map(|mark| mark.begin).next_back();
    let first = *recording.positions().start();
    first..=last.unwrap_or(first)
}

/// Recovers, judges and uses a machine. For some machines the power then goes again, or the lost
/// NSDs return and others are lost, or a disk fails in use.
fn visit(
    machine: &Machine,
    promise: &Promise,
    bad: u32,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let stack = start(machine)?;
    if rng.one_in(2) {
        // Brings back NSDs that were away when the power went and are present now.
        bring_back(&stack)?;
    }
    let found = survey(&stack);
    judge(promise, &found)?;
    let recovered_at = machine.position();
    let expected = use_it(&stack, &found, b"after").map_err(|error| format!("in use: {error}"))?;
    let is_whole = machine.disks.iter().all(Option::is_some);
    let parity = usize::from(machine.code.parity);
    match rng.below(10) {
        0..=1 => {
            drop(stack);
            tally.twice += 1;
            let cut = rng.below(recovered_at + 1);
            let again = cut_again(machine, cut, rng);
            // More NSDs may be lost now.
            let more = draw_away(machine.disks.len(), parity, rng);
            let is_tolerated = (bad | more).count_ones() as usize <= parity;
            let again = if is_tolerated { again.less(more) } else { again };
            let mut after = survey(&start(&again)?);
            // What the first recovery wrote again is there, or will be.
            for (ino, units) in found.hardened {
                after.hardened.entry(ino).or_default().extend(units);
            }
            judge(promise, &after)
                .map_err(|fault| format!("the power went again at {cut}, in recovery: {fault}"))
        }
        2 => {
            let cut = machine.position();
            drop(stack);
            tally.twice += 1;
            let again = cut_again(machine, cut, rng);
            judge(&expected, &survey(&start(&again)?))
                .map_err(|fault| format!("the power went again after use: {fault}"))
        }
        3 if !is_whole => {
            tally.returned += 1;
            come_back(machine, stack, &expected, rng)
        }
        4 => {
            let slot = rng.index(machine.disks.len());
            if (bad | 1 << slot).count_ones() as usize > parity || machine.disks[slot].is_none() {
                return Ok(());
            }
            tally.failed += 1;
            fail_in_use(machine, stack, &expected, slot, rng)
        }
        _ => Ok(()),
    }
}

fn start(machine: &Machine) -> Result<Stack, String> {
    machine.open().map_err(|error| format!("it does not start: {error}"))
}

/// Brings NSDs that were away up to date. Blocks that this writes anew may grow. The metadata
/// learns of that with the next sync.
fn bring_back(stack: &Stack) -> Result<(), String> {
    stack.manager.recover_nsds();
    stack.vfs.sync().map(|_| ()).map_err(|error| format!("brought up to date: {error}"))
}

/// The machine after another power cut. Disks that were away stay away.
fn cut_again(machine: &Machine, cut: u64, rng: &mut Rng) -> Machine {
    let mut image = |disk: &Arc<SimDisk>| {
        let mut cuts = disk.power_cuts();
        cuts.advance(cut);
        let fates = Medium::draw(rng, cuts.unsynced().count()).fates(&cuts, rng);
        let mut fates = fates.into_iter();
        cuts.image(|_| fates.next().expect("one for each event"))
    };
    let disks = machine.disks.iter().map(|disk| disk.as_ref().map(&mut image)).collect();
    let witness = image(&machine.witness);
    Machine::new(machine.code, disks, witness)
}

/// A disk fails while in use, in one of the ways in which disks fail. Everything goes on. After a
/// restart the disk is there again and is brought up to date, and then as many others are lost as
/// the code tolerates.
fn fail_in_use(
    machine: &Machine,
    mut stack: Stack,
    expected: &Promise,
    slot: usize,
    rng: &mut Rng,
) -> Result<(), String> {
    let disk = machine.disks[slot].as_ref().expect("it is there");
    let everywhere = 0..u64::MAX;
    let kind = rng.below(4);
    let how = ["reads fail", "writes fail", "a sync fails", "it hangs"][kind as usize];
    disk.set_faults(|faults| match kind {
        0 => faults.read_errors.push(everywhere),
        1 => faults.writes_until_error = Some(rng.below(20)),
        2 => faults.sync_failure = true,
        _ => {
            faults.hang = true;
            faults.hang_limit = Some(Duration::from_micros(10));
        }
    });
    // The disk's own check would report the failure, so its store is taken out.
    let store = stack.stores[slot].take();
    let fault = |text: String| format!("slot {slot}, {how}: {text}");
    let found = survey(&stack);
    judge(expected, &found).map_err(fault)?;
    let expected = use_it(&stack, &found, b"meanwhile").map_err(fault)?;
    judge(&expected, &survey(&stack)).map_err(|text| fault(format!("used: {text}")))?;
    drop((stack, store));
    let is_dead = kind == 2;
    disk.set_faults(|faults| *faults = Faults::default());
    let healed = if is_dead { machine.less(1 << slot) } else { machine.less(0) };
    let stack = start(&healed).map_err(fault)?;
    judge(&expected, &survey(&stack)).map_err(|text| fault(format!("started: {text}")))?;
    let is_whole = healed.disks.iter().all(Option::is_some);
    if !is_whole {
        return Ok(());
    }
    bring_back(&stack)?;
    healed.disks.iter().for_each(|_| stack.meta.tick());
    judge(&expected, &survey(&stack)).map_err(|text| fault(format!("up to date: {text}")))?;
    drop(stack);
    let away = draw_away(healed.disks.len(), usize::from(machine.code.parity), rng);
    judge(&expected, &survey(&start(&healed.less(away)).map_err(fault)?))
        .map_err(|text| fault(format!("others were lost then (mask {away:#b}): {text}")))
}

/// The lost NSDs return while the others are in use, and are brought up to date. After a restart as
/// many others are lost as the code tolerates.
fn come_back(
    machine: &Machine,
    mut stack: Stack,
    expected: &Promise,
    rng: &mut Rng,
) -> Result<(), String> {
    for (slot, disk) in machine.away.iter().enumerate() {
        let Some(disk) = disk else { continue };
        let (container, store) =
            machine.open_store(disk).map_err(|error| format!("a return: {error}"))?;
        stack
            .meta
            .attach(container, false, machine.clock.wall())
            .map_err(|error| format!("the metadata takes an NSD in: {error}"))?;
        let port = Arc::clone(&store) as Arc<dyn NsdPort>;
        stack.vfs.array().attach_nsd(SlotIndex(slot as u16), Some(port));
        stack.put_store(slot, store);
    }
    bring_back(&stack)?;
    if let Some(view) =
        stack.vfs.array().nsds().iter().find(|view| !view.state.availability.readable())
    {
        return Err(format!("NSD {} returned and is not up: {:?}", view.nsd, view.state));
    }
    judge(expected, &survey(&stack)).map_err(|fault| format!("NSDs returned: {fault}"))?;
    stack.shutdown().map_err(|error| format!("an orderly end: {error}"))?;
    drop(stack);
    let whole = machine.whole();
    let stack = start(&whole)?;
    // Makes the missing copies of the metadata, as the background worker would in time.
    whole.disks.iter().for_each(|_| stack.meta.tick());
    judge(expected, &survey(&stack)).map_err(|fault| format!("all are there: {fault}"))?;
    drop(stack);
    let parity = usize::from(machine.code.parity);
    let away = draw_away(whole.disks.len(), parity, rng);
    judge(expected, &survey(&start(&whole.less(away))?))
        .map_err(|fault| format!("others were lost then (mask {away:#b}): {fault}"))
}

/// Writes to a recovered file system as an application would. Returns what it must hold after that.
fn use_it(stack: &Stack, found: &Found, name: &[u8]) -> Result<Promise, String> {
    let say = |error: strake_proto::Error| error.to_string();
    let vfs = &*stack.vfs;
    let mut after = found.clone();
    let (entry, opened) =
        vfs.create(ROOT, Ino::ROOT, name, 0o600, READ_WRITE, true).map_err(say)?;
    let ino = entry.attr.ino.0;
    after.tree.make(1, name, ino, crate::tree::Node::new(crate::tree::Kind::File, 0o600));
    let bytes: Vec<u8> = (0..BLOCK_SIZE as usize / 2 + 77).map(|at| at as u8 | 1).collect();
    vfs.write(opened.handle, 0, &bytes).map_err(say)?;
    vfs.fsync(opened.handle).map_err(say)?;
    let mut read = vec![0; bytes.len()];
    let count = vfs.read(opened.handle, 0, &mut read).map_err(say)?;
    if count != bytes.len() || read != bytes {
        return Err("a new file does not read what was written".to_owned());
    }
    after.files.insert(ino, bytes);
    vfs.release(opened.handle);
    // Overwrites a part of something that was recovered.
    if let Some((ino, bytes)) = after.files.iter_mut().find(|(_, bytes)| bytes.len() > 5000) {
        let handle = vfs.open(ROOT, Ino(*ino), READ_WRITE).map_err(say)?.handle;
        vfs.write(handle, 4000, &[0xa5; 200]).map_err(say)?;
        bytes[4000..4200].fill(0xa5);
        vfs.fsync(handle).map_err(say)?;
        vfs.release(handle);
    }
    after.faults.clear();
    Ok(Promise::exactly(&after))
}
