//! What an NSD holds of the block, and its rules: what it accepts, keeps, joins and frees.
//!
//! Each version that is held is either whole or a patch. A patch has some units; the version before
//! it has the rest.

use super::{Bug, Scope};

/// Units of the block. With one data strip every strip has both units. With two data strips each
/// data strip has one unit, and a parity strip is made of both.
pub(super) const UNITS: usize = 2;
/// All units, as a mask.
pub(super) const ALL_UNITS: u8 = (1 << UNITS) - 1;
/// A value for each unit.
pub(super) type Units = [u8; UNITS];
/// Stands for a value where a strip says nothing about this unit.
pub(super) const NOTHING: u8 = u8::MAX;
/// Stands for a value where a strip has bytes that nobody wrote.
pub(super) const GARBAGE: u8 = u8::MAX - 1;

/// A version that an NSD holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Strip {
    pub version: u8,
    /// Whether this is a patch: the version before it has the units that this one lacks.
    pub is_patch: bool,
    pub units: Units,
    pub settled: bool,
}

impl Strip {
    /// No strip.
    const NONE: Strip =
        Strip { version: 0, is_patch: false, units: [NOTHING; UNITS], settled: false };
}

/// The most versions that an NSD holds in these scopes.
const STRIPS_MAX: usize = 8;

/// Strips, oldest first. The list has no allocation of its own, because states are copied all the
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Strips {
    length: u8,
    items: [Strip; STRIPS_MAX],
}

impl Default for Strips {
    fn default() -> Strips {
        Strips { length: 0, items: [Strip::NONE; STRIPS_MAX] }
    }
}

impl Strips {
    pub(super) fn push(&mut self, strip: Strip) {
        self.items[usize::from(self.length)] = strip;
        self.length += 1;
    }

    pub(super) fn pop(&mut self) {
        self.length -= 1;
        self.items[usize::from(self.length)] = Strip::NONE;
    }

    fn retain(&mut self, keeps: impl Fn(&Strip) -> bool) {
        let before = std::mem::take(self);
        before.iter().filter(|strip| keeps(strip)).for_each(|strip| self.push(*strip));
    }
}

impl std::ops::Deref for Strips {
    type Target = [Strip];

    fn deref(&self) -> &[Strip] {
        &self.items[..usize::from(self.length)]
    }
}

impl std::ops::DerefMut for Strips {
    fn deref_mut(&mut self) -> &mut [Strip] {
        &mut self.items[..usize::from(self.length)]
    }
}

/// An NSD: its strips, oldest first, and whether it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Nsd {
    pub strips: Strips,
    /// The strips that a power cut leaves.
    pub disk: Strips,
    /// The newest deletion that it has applied.
    pub floor: u8,
    pub away: bool,
    /// The metadata says that the NSD missed something.
    pub noted: bool,
}

/// The part of a block's content that the strip of a position has.
pub(super) fn part(scope: &Scope, at: usize, content: Units) -> Units {
    std::array::from_fn(|unit| if has_unit(scope, at, unit) { content[unit] } else { NOTHING })
}

/// The part of a patch that changes the strip of a position.
pub(super) fn patched_part(scope: &Scope, at: usize, changed: u8, content: Units) -> Units {
    // With two data strips both units contribute to one unit of parity.
    let all = scope.data > 1 && at >= scope.data && changed != 0;
    let changed = if all { ALL_UNITS } else { changed };
    let content = part(scope, at, content);
    std::array::from_fn(|unit| if changed >> unit & 1 == 1 { content[unit] } else { NOTHING })
}

fn has_unit(scope: &Scope, at: usize, unit: usize) -> bool {
    scope.data == 1 || at >= scope.data || at == unit
}

/// Lays the units of a patch over those of its base.
fn lay_over(base: Units, units: Units) -> Units {
    std::array::from_fn(|unit| if units[unit] == NOTHING { base[unit] } else { units[unit] })
}

/// What all choices of N of these strips decode to. The strips are at least N, all of one version.
/// An error says how choices differ.
pub(super) fn decode(scope: &Scope, strips: &[(usize, Units)]) -> Result<Units, String> {
    let mut content = [NOTHING; UNITS];
    for &(at, units) in strips {
        for unit in (0..UNITS).filter(|unit| has_unit(scope, at, *unit)) {
            if units[unit] == GARBAGE || units[unit] == NOTHING {
                return Err(format!("unit {unit} of strip {at} is gone"));
            }
            if content[unit] != NOTHING && content[unit] != units[unit] {
                return Err(format!("unit {unit} is another from other choices of N strips"));
            }
            content[unit] = units[unit];
        }
    }
    Ok(content)
}

impl Nsd {
    /// An NSD that has no strip, or one that is stable and settled.
    pub(super) fn with(strip: Option<Strip>) -> Nsd {
        let mut strips = Strips::default();
        strip.into_iter().for_each(|strip| strips.push(strip));
        Nsd { disk: strips, strips, ..Nsd::default() }
    }

    pub(super) fn newest(&self) -> u8 {
        self.strips.last().map_or(0, |strip| strip.version)
    }

    pub(super) fn holds(&self, version: u8) -> bool {
        self.strips.iter().any(|strip| strip.version == version)
    }

    pub(super) fn is_durable(&self, version: u8) -> bool {
        self.disk.iter().any(|strip| strip.version == version)
    }

    /// Makes everything that the NSD has durable.
    pub(super) fn commit(&mut self) {
        self.disk = self.strips;
    }

    /// Restarts the NSD: everything that is not durable is gone.
    pub(super) fn restart(&mut self) {
        self.strips = self.disk;
    }

    /// The content of a version, if the NSD holds it.
    pub(super) fn content(&self, version: u8) -> Option<Units> {
        let mut at = self.strips.iter().position(|strip| strip.version == version)?;
        let mut units = self.strips[at].units;
        while self.strips[at].is_patch {
            if at == 0 {
                return Some(lay_over([GARBAGE; UNITS], units));
            }
            at -= 1;
            units = lay_over(self.strips[at].units, units);
        }
        Some(units)
    }

    /// Accepts a new whole version. False if the NSD refuses it. If the NSD holds `stable`, it
    /// drops everything older than that.
    pub(super) fn put(&mut self, scope: &Scope, version: u8, units: Units, stable: u8) -> bool {
        if self.newest() >= version || version <= self.floor {
            return false;
        }
        self.push(scope, Strip { version, is_patch: false, units, settled: false }, stable);
        true
    }

    /// Accepts a patch of `base`. False if `base` is not the NSD's newest version, or may not be
    /// patched.
    pub(super) fn patch(&mut self, scope: &Scope, version: u8, units: Units, base: u8) -> bool {
        let fits = self.newest() == base
            && base > self.floor
            // Otherwise the NSD would drop the base for the patch: nobody was told that the base is
            // stable here.
            && (self.is_settled_or_durable(base) || scope.has(Bug::PatchesTheUnstable));
        let any = scope.has(Bug::AcceptsPatchesOfAnyBase) && self.newest() < version;
        if !fits && !any {
            return false;
        }
        let stable = if scope.has(Bug::PatchesTheUnstable) { 0 } else { base };
        self.push(scope, Strip { version, is_patch: true, units, settled: false }, stable);
        true
    }

    fn is_settled_or_durable(&self, version: u8) -> bool {
        let settled = |strip: &Strip| strip.version == version && strip.settled;
        self.strips.iter().any(settled) || self.is_durable(version)
    }

    fn push(&mut self, scope: &Scope, strip: Strip, stable: u8) {
        if self.holds(stable) {
            self.drop_older(scope, stable);
        }
        if let Some(last) = self.strips.last()
            && !last.settled
            && (!self.is_durable(last.version) || scope.has(Bug::DropsWhatACommitCovers))
        {
            self.strips.pop();
        }
        if scope.has(Bug::KeepsNoPrevious) {
            self.strips = Strips::default();
        }
        self.strips.push(strip);
    }

    /// Drops everything older than `version`. A patch that loses its base takes over the units it
    /// lacks.
    pub(super) fn drop_older(&mut self, scope: &Scope, version: u8) {
        let Some(first) = self.strips.iter().find(|strip| strip.version >= version) else {
            self.strips = Strips::default();
            return;
        };
        let (first, own) = (first.version, first.units);
        let held = |version| self.content(version).unwrap_or([GARBAGE; UNITS]);
        let whole = held(first);
        let before = self.strips.iter().rev().find(|strip| strip.version < version);
        let base = before.map_or(whole, |strip| held(strip.version));
        self.strips.retain(|strip| strip.version >= version);
        let first = &mut self.strips[0];
        if std::mem::take(&mut first.is_patch) {
            first.units = match () {
                () if scope.has(Bug::DropsTheBase) => lay_over([GARBAGE; UNITS], own),
                () if scope.has(Bug::BaseWinsTheJoin) => base,
                () => whole,
            };
        }
    }

    /// Settles a version: older ones go. Does nothing if the NSD missed the version, because its
    /// older strips may be all that there is.
    pub(super) fn settle(&mut self, scope: &Scope, version: u8) {
        if self.newest() < version {
            return;
        }
        self.drop_older(scope, version);
        for strip in self.strips.iter_mut().filter(|strip| strip.version == version) {
            strip.settled = true;
        }
    }

    /// Deletes everything up to a version for good.
    pub(super) fn delete(&mut self, scope: &Scope, floor: u8) {
        if self.floor < floor {
            self.floor = floor;
            self.drop_older(scope, floor + 1);
            self.commit();
        }
    }
}
