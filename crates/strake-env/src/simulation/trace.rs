//! The trace of a simulation: each decision and each I/O, as a hash of all and as the lines.

use super::Place;
use std::fmt;

/// One step of one thread.
#[derive(Clone, Copy)]
pub struct Line {
    /// The number of the thread; 0 is the first.
    pub thread: u32,
    /// What it did.
    pub what: &'static str,
    /// Where in the source.
    pub place: Option<Place>,
    /// Of an I/O: where and what.
    pub numbers: [u64; 2],
}

impl PartialEq for Line {
    fn eq(&self, other: &Line) -> bool {
        let place = |line: &Line| line.place.map(|place| (place.file(), place.line()));
        (self.thread, self.what, self.numbers) == (other.thread, other.what, other.numbers)
            && place(self) == place(other)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "thread {}: {}", self.thread, self.what)?;
        if self.numbers != [0, 0] {
            write!(out, " {:x} {:x}", self.numbers[0], self.numbers[1])?;
        }
        match self.place {
            Some(place) => write!(out, " at {place}"),
            None => Ok(()),
        }
    }
}

/// All steps of a simulation, in order.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    count: u64,
    lines: Option<Vec<Line>>,
}

impl Trace {
    pub(crate) fn new(keeps_lines: bool) -> Trace {
        Trace { hash: 0, count: 0, lines: keeps_lines.then(Vec::new) }
    }

    pub(crate) fn add(&mut self, line: Line) {
        let mut hash = self.hash ^ u64::from(line.thread);
        let mut mix = |word: u64| {
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        };
        line.what.bytes().for_each(|byte| mix(u64::from(byte)));
        line.numbers.into_iter().for_each(&mut mix);
        mix(line.place.map_or(0, |place| u64::from(place.line())));
        self.hash = hash;
        self.count += 1;
        if let Some(lines) = &mut self.lines {
            lines.push(line);
        }
    }

    /// A hash of all lines.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many lines there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The lines, where they were kept.
    pub fn lines(&self) -> &[Line] {
        self.lines.as_deref().unwrap_or(&[])
    }

    /// Where two traces differ first, with the lines around that place; `None` if they are equal.
    pub fn difference(&self, other: &Trace) -> Option<String> {
        if (self.hash, self.count) == (other.hash, other.count) && self.lines() == other.lines() {
            return None;
        }
        let (one, two) = (self.lines(), other.lines());
        let equal = one.iter().zip(two).take_while(|(one, two)| one == two).count();
        let mut text = format!("{} and {} lines, of which {equal} are equal", one.len(), two.len());
        for line in &one[equal.saturating_sub(20)..equal] {
            text.push_str(&format!("\n  both  {line}"));
        }
        for (name, lines) in [("one", one), ("other", two)] {
            for line in lines.iter().skip(equal).take(5) {
                text.push_str(&format!("\n  {name:<5} {line}"));
            }
        }
        Some(text)
    }
}
