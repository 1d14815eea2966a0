//! Loss of data by simulation, on the stripes that Strake's own placement makes.
//!
//! A cluster loses data so seldom that a plain simulation would never see it. So each trial begins
//! when everything is whole and something fails. While anything is not yet rebuilt, the next
//! failure is forced into the time that is left, and the trial's weight is multiplied by the
//! probability that it really falls there. A trial ends when data is lost, and its weight counts,
//! or when too many failures came without a loss. The mean weight is the probability that a first
//! failure ends in a loss, and
//!
//! ```text
//! rate of loss = rate of first failures · mean weight
//! ```
//!
//! Disks and servers fail; a server takes its disks along. Where disks are in enclosures outside
//! the servers, "server" stands for these. Rebuilds run one after the other, as
//! one node does them, in the order of the stripes, so that a stripe is whole again when its turn
//! has come. Data is lost when more strips of one stripe are lost than its code tolerates. A sample
//! of stripes is looked at one by one. A full file system has thousands of times as many, so a set
//! of disks that shares no stripe of the sample may share one of the rest. `spread` says how likely
//! that is, and a trial that the sample survives is lost with this probability and goes on with the
//! rest of its weight. Where failure groups are of unequal size the sample is all there is.
//!
//! Trials go on until the error is small enough, or until a limit of trials or of work. Work is
//! counted and not timed, so that a seed gives the same answer on every machine.

use crate::design::{System, Tier};
use crate::error::PlanError;
use crate::evaluate::{evaluate_tier, usable};
use crate::figure::Figure;
use crate::library::Parity;
use crate::loss::unit_domain;
use crate::rebuild::disks_in_scope;
use crate::reliability::{Reliability, YEAR, per_second};
use crate::spread::Spread;
use crate::unit::Unit;
use serde::Serialize;
use strake_env::Rng;
use strake_proto::{BlockIndex, Code, LayoutMap, LayoutVersion, ObjectId, SlotIndex};
use strake_stripe::Placement;

/// A trial is cut off when this many failures came without a loss. What it still weighs then
/// widens the answer's interval.
const FAILURES_MAX: usize = 12;
/// The most trials, where nobody asks for a number of them.
const TRIALS_MAX: u64 = 200_000;
/// At least this share of forced failures takes a server, where servers fail at all.
const SERVERS_FORCED: f64 = 0.25;
/// The fewest trials, where nobody asks for a number: the error of few trials is itself uncertain.
const TRIALS_MIN: u64 = 1000;
/// Trials end once the standard error is this share of the answer.
const ERROR_ENOUGH: f64 = 0.03;
/// Trials end once they have looked at this many strips and disks, which takes seconds.
const WORK_MAX: u64 = 1_000_000_000;
/// Blocks of one object in the sample.
const BLOCKS_PER_OBJECT: u64 = 1000;

/// What a simulation is told.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many trials to make. Without a number, trials go on until the answer is good enough or a
    /// limit is reached.
    pub trials: Option<u64>,
    /// Stripes in the sample.
    pub stripes: u64,
    pub seed: u64,
}

/// Why the trials ended.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    Asked,
    Accurate,
    TrialsLimit,
    WorkLimit,
}

impl Ended {
    pub fn says(self) -> &'static str {
        match self {
            Ended::Asked => "as many as asked for",
            Ended::Accurate => "accurate enough",
            Ended::TrialsLimit => "the limit of trials",
            Ended::WorkLimit => "the limit of work; --trials goes beyond it",
        }
    }
}

/// What it found.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Found {
    /// Mean time to data loss in seconds; none if no trial lost any.
    pub mttdl: Option<f64>,
    pub loss_per_year: f64,
    /// Standard error of `loss_per_year`.
    pub error: f64,
    /// The range in which `loss_per_year` lies with 95 % confidence. Its end includes the trials
    /// that were cut off.
    pub interval: (f64, f64),
    pub ended: Ended,
    /// Trials that ended in a loss.
    pub losses: u64,
    pub trials: u64,
    pub stripes: u64,
    /// Stripes of the full file system; none where the answer is that of the sample alone.
    pub stripes_full: Option<u64>,
    pub seed: u64,
}

/// The cluster that is simulated. Rates are per second, times in seconds.
#[derive(Clone, Debug)]
pub struct Model {
    pub disks: usize,
    /// Disk ▶ server; each disk its own where servers are not looked at.
    pub server_of: Vec<usize>,
    pub servers: usize,
    pub tolerates: usize,
    pub disk_rate: f64,
    pub server_rate: f64,
    pub disk_rebuild: f64,
    pub server_rebuild: f64,
    /// Members of each stripe of the sample.
    pub stripes: Vec<Vec<u16>>,
    /// Stripes of a full file system that are not in the sample, and how they lie.
    pub beyond: Option<(u64, Spread)>,
    /// Disk ▶ its stripes.
    of_disk: Vec<Vec<u32>>,
}

impl Model {
    /// The cluster of a tier with Strake's placement.
    pub fn of(tier: &Tier, times: (f64, Option<f64>), sample: u64) -> Result<Model, PlanError> {
        let storage = &tier.storage;
        let wrong = |why: String| PlanError::Design { tier: tier.name.clone(), why };
        if storage.parity != Parity::Client {
            return Err(wrong(
                "the simulation uses Strake's placement; this tier has RAID controllers or \
                 declustered servers, for which evaluate prints the Markov model"
                    .into(),
            ));
        }
        let code: Code = storage
            .code
            .name
            .parse()
            .map_err(|error| wrong(format!("the simulation uses Strake's codes: {error}")))?;
        let afr = storage.disk.afr.as_ref().ok_or_else(|| {
            wrong(format!("the library has no afr (failures a year) of {}", storage.disk.name))
        })?;
        let disks = disks_in_scope(tier);
        let unit = unit_domain(tier);
        let servers = unit.map_or(disks, |(domain, _)| domain.count);
        let each = disks.div_ceil(servers).max(1);
        let server_of: Vec<usize> = (0..disks).map(|disk| (disk / each) as usize).collect();
        let slot = |index: u64| u16::try_from(index).map(SlotIndex);
        let members: Result<Vec<(SlotIndex, u32)>, _> = server_of
            .iter()
            .enumerate()
            .map(|(disk, server)| Ok((slot(disk as u64)?, *server as u32)))
            .collect::<Result<_, std::num::TryFromIntError>>();
        let members = members.map_err(|_| wrong("more than 65,536 disks in a layout".into()))?;
        let layout = LayoutMap { version: LayoutVersion(1), members };
        let placement = Placement::new(&layout, code).map_err(|error| wrong(error.to_string()))?;
        let blocks = Figure::design("blocks", Unit::Count, tier.blocks as f64);
        let full = (usable(tier, &blocks).value / storage.block_size) as u64;
        let stripes = (0..sample)
            .map(|index| {
                let object = ObjectId(1 + index / BLOCKS_PER_OBJECT);
                let block = BlockIndex(index % BLOCKS_PER_OBJECT);
                placement.stripe(object, block).iter().map(|slot| slot.0).collect()
            })
            .collect();
        let (disk_rebuild, server_rebuild) = times;
        let equal = disks.is_multiple_of(servers);
        let spread = Spread {
            groups: servers as usize,
            members: each as usize,
            width: storage.code.width() as usize,
        };
        Ok(Model::new(Model {
            disks: disks as usize,
            server_of,
            servers: servers as usize,
            tolerates: storage.code.tolerates() as usize,
            disk_rate: per_second(afr.value),
            server_rate: match unit {
                Some((_, Some(rate))) => per_second(rate.value),
                _ => 0.0,
            },
            disk_rebuild,
            server_rebuild: server_rebuild.unwrap_or(disk_rebuild * each as f64),
            beyond: equal.then(|| (full.saturating_sub(sample), spread)),
            stripes,
            of_disk: Vec::new(),
        }))
    }

    /// Completes a model whose stripes are given.
    pub fn new(mut model: Model) -> Model {
        model.of_disk = vec![Vec::new(); model.disks];
        for (index, stripe) in model.stripes.iter().enumerate() {
            for disk in stripe {
                model.of_disk[usize::from(*disk)].push(index as u32);
            }
        }
        model
    }

    /// A model without servers, for tests and comparisons.
    pub fn of_disks(disks: usize, tolerates: usize, stripes: Vec<Vec<u16>>) -> Model {
        Model::new(Model {
            disks,
            server_of: (0..disks).collect(),
            servers: disks,
            tolerates,
            disk_rate: 0.0,
            server_rate: 0.0,
            disk_rebuild: 0.0,
            server_rebuild: 0.0,
            stripes,
            beyond: None,
            of_disk: Vec::new(),
        })
    }

    /// Rate of first failures.
    fn first_rate(&self) -> f64 {
        self.disks as f64 * self.disk_rate + self.servers as f64 * self.server_rate
    }
}

/// A thing that failed: its disks, and when its rebuild runs.
struct Failed {
    disks: Vec<usize>,
    /// The server, where a whole one failed.
    server: Option<usize>,
    start: f64,
    end: f64,
}

/// One trial: the failures so far.
struct Trial<'a> {
    model: &'a Model,
    failed: Vec<Failed>,
    lost: Vec<bool>,
    server_lost: Vec<bool>,
    now: f64,
    failures: usize,
    /// Strips and disks looked at.
    work: u64,
}

impl Trial<'_> {
    fn new(model: &Model) -> Trial<'_> {
        let (lost, server_lost) = (vec![false; model.disks], vec![false; model.servers]);
        Trial { model, failed: Vec::new(), lost, server_lost, now: 0.0, failures: 0, work: 0 }
    }

    /// Time until everything that failed is rebuilt.
    fn left(&self) -> f64 {
        self.failed.last().map_or(0.0, |failed| failed.end - self.now)
    }

    /// Rate of further failures.
    fn rate(&self) -> f64 {
        let disks = self.lost.iter().filter(|lost| !**lost).count() as f64;
        let servers = self.server_lost.iter().filter(|lost| !**lost).count() as f64;
        disks * self.model.disk_rate + servers * self.model.server_rate
    }

    /// What is rebuilt by now can fail again.
    fn forget(&mut self) {
        let now = self.now;
        let (done, failed): (Vec<Failed>, Vec<Failed>) =
            self.failed.drain(..).partition(|failed| failed.end <= now);
        self.failed = failed;
        for failed in done {
            failed.disks.iter().for_each(|disk| self.lost[*disk] = false);
            failed.server.iter().for_each(|server| self.server_lost[*server] = false);
        }
    }

    /// Something that is whole fails: in at least the `servers_forced` share of all cases a server,
    /// because they fail seldom and what they lose weighs much. Returns the weight of the choice.
    fn fail(&mut self, rng: &mut Rng, servers_forced: f64) -> f64 {
        let model = self.model;
        self.failures += 1;
        self.work += 3 * model.disks as u64;
        let disks: Vec<usize> = (0..model.disks).filter(|disk| !self.lost[*disk]).collect();
        let servers: Vec<usize> =
            (0..model.servers).filter(|server| !self.server_lost[*server]).collect();
        let of_disks = disks.len() as f64 * model.disk_rate;
        let all = of_disks + servers.len() as f64 * model.server_rate;
        let real = of_disks / all;
        let forced = if real < 1.0 { real.min(1.0 - servers_forced) } else { 1.0 };
        let of_disk = unit(rng) < forced;
        let (disks, server, time) = if of_disk {
            (vec![disks[rng.index(disks.len())]], None, model.disk_rebuild)
        } else {
            let server = servers[rng.index(servers.len())];
            self.server_lost[server] = true;
            let of_server = (0..model.disks)
                .filter(|disk| model.server_of[*disk] == server && !self.lost[*disk]);
            (of_server.collect(), Some(server), model.server_rebuild)
        };
        disks.iter().for_each(|disk| self.lost[*disk] = true);
        let start = self.failed.last().map_or(self.now, |before| before.end.max(self.now));
        self.failed.push(Failed { disks, server, start, end: start + time });
        if of_disk { real / forced } else { (1.0 - real) / (1.0 - forced) }
    }

    /// Whether a stripe has lost more strips than its code tolerates. Between failures a stripe
    /// only gains strips, so the stripes of what failed last are all that can.
    fn loses(&mut self) -> bool {
        let model = self.model;
        let all = model.stripes.len() as f64;
        // Disk ▶ its first stripe that is not rebuilt.
        let mut first = vec![u32::MAX; model.disks];
        for failed in &self.failed {
            let from = (progress(failed, self.now) * all) as u32;
            failed.disks.iter().for_each(|disk| first[*disk] = from);
        }
        let lost: usize = self.failed.iter().map(|failed| failed.disks.len()).sum();
        let Some(last) = self.failed.last().filter(|_| lost > model.tolerates) else {
            return false;
        };
        for disk in &last.disks {
            for stripe in &model.of_disk[*disk] {
                let members = &model.stripes[*stripe as usize];
                self.work += members.len() as u64;
                let mut strips = 0;
                for member in members {
                    strips += usize::from(first[usize::from(*member)] <= *stripe);
                }
                if strips > model.tolerates {
                    return true;
                }
            }
        }
        false
    }

    /// The probability that what failed last makes a stripe outside the sample lose too much.
    fn loses_beyond(&self) -> f64 {
        let Some((stripes, spread)) = self.model.beyond else { return 0.0 };
        let (Some(last), now) = (self.failed.last(), self.now) else { return 0.0 };
        let lost: usize = self.failed.iter().map(|failed| failed.disks.len()).sum();
        if lost <= self.model.tolerates {
            return 0.0;
        }
        // Rebuilds go from stripe to stripe, so a share of the stripes has what failed first again.
        let mut shares: Vec<f64> = self.failed.iter().map(|failed| progress(failed, now)).collect();
        shares.push(1.0);
        shares.sort_by(f64::total_cmp);
        let mut all_whole = 0.0;
        for share in shares.windows(2).filter(|share| share[1] > share[0]) {
            let here = self.failed.iter().filter(|failed| progress(failed, now) <= share[0]);
            let (mut with, mut before) = (vec![0; self.model.servers], vec![0; self.model.servers]);
            for failed in here {
                for disk in &failed.disks {
                    let group = self.model.server_of[*disk];
                    with[group] += 1;
                    before[group] += usize::from(!std::ptr::eq(failed, last));
                }
            }
            with.retain(|count| *count > 0);
            before.retain(|count| *count > 0);
            // Stripes that had lost too many before have ended the trial before.
            let before = spread.too_many(&before, self.model.tolerates);
            let with = spread.too_many(&with, self.model.tolerates);
            let newly = ((with - before) / (1.0 - before)).clamp(0.0, 1.0);
            all_whole += stripes as f64 * (share[1] - share[0]) * (-newly).ln_1p();
        }
        -all_whole.exp_m1()
    }
}

/// How far a rebuild is, from 0 to 1.
fn progress(failed: &Failed, now: f64) -> f64 {
    ((now - failed.start) / (failed.end - failed.start)).clamp(0.0, 1.0)
}

/// A number in 0 to 1, never 1.
fn unit(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// One tier: the Markov model, and the simulation where Strake places the stripes.
#[derive(Clone, Debug, Serialize)]
pub struct TierReliability {
    pub tier: String,
    pub markov: Option<Reliability>,
    pub simulated: Option<Found>,
    /// Why there is no simulation.
    pub without: Option<String>,
}

/// Both for every tier of a system.
pub fn of_system(system: &System, plan: Plan) -> Result<Vec<TierReliability>, PlanError> {
    let of_tier = |tier: &Tier| {
        let evaluation = evaluate_tier(system, tier);
        let server = evaluation.rebuild_unit.as_ref().map(|time| time.value);
        let model = Model::of(tier, (evaluation.rebuild.value, server), plan.stripes);
        let without = model.as_ref().err().map(PlanError::to_string);
        TierReliability {
            tier: tier.name.clone(),
            markov: evaluation.reliability,
            simulated: model.ok().map(|model| simulate(&model, plan)),
            without,
        }
    };
    let all: Vec<TierReliability> = system.tiers.iter().map(of_tier).collect();
    match &all[..] {
        [TierReliability { markov: None, without: Some(why), .. }] => {
            Err(PlanError::Usage(why.clone()))
        }
        _ => Ok(all),
    }
}

/// The weights of the trials so far.
#[derive(Default)]
struct Sum {
    trials: u64,
    losses: u64,
    sum: f64,
    squares: f64,
    /// Of trials that were cut off: each might have ended in a loss.
    cut: f64,
    work: u64,
}

impl Sum {
    fn add(&mut self, (end, work): (End, u64)) {
        self.trials += 1;
        self.work += work;
        self.losses += u64::from(end.lost > 0.0);
        self.sum += end.lost;
        self.squares += end.lost * end.lost;
        self.cut += end.cut;
    }

    fn mean(&self) -> f64 {
        self.sum / self.trials.max(1) as f64
    }

    /// Standard error of the mean.
    fn error(&self) -> f64 {
        let trials = self.trials.max(1) as f64;
        ((self.squares / trials - self.mean().powi(2)).max(0.0) / trials).sqrt()
    }

    /// The mean is not above this value with 95 % confidence. Where no trial lost anything, the
    /// rule of three gives the value: a weight is at most what the forced servers make it.
    fn most(&self) -> f64 {
        let trials = self.trials.max(1) as f64;
        let seen = match self.losses {
            0 => 3.0 / trials * (1.0 - SERVERS_FORCED).powi(-(FAILURES_MAX as i32)),
            _ => self.mean() + 1.96 * self.error(),
        };
        seen + self.cut / trials
    }

    fn ended(&self, plan: Plan) -> Option<Ended> {
        if let Some(trials) = plan.trials {
            return (self.trials >= trials).then_some(Ended::Asked);
        }
        let accurate = self.losses > 0 && self.error() <= ERROR_ENOUGH * self.mean();
        match self.trials {
            _ if self.work >= WORK_MAX => Some(Ended::WorkLimit),
            trials if trials >= TRIALS_MAX => Some(Ended::TrialsLimit),
            trials if trials >= TRIALS_MIN && accurate => Some(Ended::Accurate),
            _ => None,
        }
    }
}

/// Runs the simulation.
pub fn simulate(model: &Model, plan: Plan) -> Found {
    let mut rng = Rng::new(plan.seed);
    let mut sum = Sum::default();
    let ended = loop {
        if let Some(ended) = sum.ended(plan) {
            break ended;
        }
        sum.add(trial(model, &mut rng));
    };
    let (mean, error) = (sum.mean(), sum.error());
    let per_year = |mean: f64| -(-model.first_rate() * mean * YEAR).exp_m1();
    let rate = model.first_rate() * mean;
    Found {
        mttdl: (rate > 0.0).then(|| 1.0 / rate),
        loss_per_year: per_year(mean),
        error: per_year(error),
        interval: (per_year((mean - 1.96 * error).max(0.0)), per_year(sum.most())),
        ended,
        losses: sum.losses,
        trials: sum.trials,
        stripes: model.stripes.len() as u64,
        stripes_full: model.beyond.map(|(stripes, _)| model.stripes.len() as u64 + stripes),
        seed: plan.seed,
    }
}

/// How a trial ends.
#[derive(Default)]
struct End {
    /// The weight with which data was lost.
    lost: f64,
    /// The weight of what was not followed further.
    cut: f64,
}

/// A trial ends when what goes on weighs no more than this share of what was lost.
const WEIGHT_LEFT: f64 = 1e-9;

/// What one first failure leads to, and the work of the trial.
fn trial(model: &Model, rng: &mut Rng) -> (End, u64) {
    let mut trial = Trial::new(model);
    let (mut end, mut weight) = (End::default(), 1.0);
    loop {
        weight *= trial.fail(rng, SERVERS_FORCED);
        let lost = if trial.loses() { 1.0 } else { trial.loses_beyond() };
        end.lost += weight * lost;
        weight *= 1.0 - lost;
        let (left, rate) = (trial.left(), trial.rate());
        if left <= 0.0 || rate <= 0.0 {
            return (end, trial.work);
        }
        if weight <= WEIGHT_LEFT * end.lost || trial.failures >= FAILURES_MAX {
            end.cut = weight;
            return (end, trial.work);
        }
        let inside = -(-rate * left).exp_m1();
        weight *= inside;
        // A sample of the exponential time, given that it lies inside.
        let wait = -(-unit(rng) * inside).ln_1p() / rate;
        trial.now += wait.min(left);
        trial.forget();
    }
}

#[cfg(test)]
#[path = "montecarlo_test.rs"]
mod montecarlo_test;
