//! The simulation against closed forms, against a plain one, and on Strake's placement.

use super::*;
use crate::design::Design;
use crate::library::Library;
use crate::reliability::Chain;

const PLAN: Plan = Plan { trials: Some(10_000), stripes: 20, seed: 1 };

/// Stripes over all disks: any loss beyond the tolerated ones hits each of them.
fn one_group(disks: usize, tolerates: usize) -> Model {
    let all: Vec<u16> = (0..disks as u16).collect();
    let mut model = Model::of_disks(disks, tolerates, vec![all; 20]);
    model.disk_rate = 1e-7;
    model.disk_rebuild = 1000.0;
    model
}

#[track_caller]
fn agrees(found: &Found, rate: f64) {
    let ours = 1.0 / found.mttdl.unwrap();
    let error = found.error / found.loss_per_year * ours;
    let bound = 4.0 * error + 0.01 * rate;
    assert!((ours - rate).abs() < bound, "{ours:e} ± {error:e} is not {rate:e}");
}

#[test]
fn one_array_loses_data_as_often_as_the_closed_forms_say() {
    let (n, lambda, time) = (10.0_f64, 1e-7_f64, 1000.0_f64);
    // One parity: a second disk within the repair of the first.
    let one = n * (n - 1.0) * lambda.powi(2) * time;
    agrees(&simulate(&one_group(10, 1), PLAN), one);
    let chain = Chain {
        count: n,
        survives: 1,
        loss_rate: lambda,
        repair_rate: 1.0 / time,
        unreadable: 0.0,
    };
    agrees(&simulate(&one_group(10, 1), PLAN), 1.0 / chain.mttdl());
    // Two: the third before the first is repaired. Repairs take a fixed time, not an exponential
    // one, so that only half of the pairs of later failures fall into it.
    let two = n * (n - 1.0) * (n - 2.0) * lambda.powi(3) * time.powi(2) / 2.0;
    agrees(&simulate(&one_group(10, 2), PLAN), two);
}

#[test]
fn a_server_takes_all_its_disks_along() {
    // Four servers of three disks; stripes use the last disk of each.
    let mut model = Model::of_disks(12, 1, vec![vec![2, 5, 8, 11]; 20]);
    model.server_of = (0..12).map(|disk| disk / 3).collect();
    (model.servers, model.server_rate, model.server_rebuild) = (4, 1e-7, 1000.0);
    agrees(&simulate(&model, PLAN), 4.0 * 3.0 * 1e-7_f64.powi(2) * 1000.0);
}

/// Simulates years of failures and repairs with nothing forced.
fn plain(model: &Model, first_failures: u64, seed: u64) -> f64 {
    let mut rng = Rng::new(seed);
    let mut losses = 0;
    for _ in 0..first_failures {
        let mut trial = Trial::new(model);
        trial.fail(&mut rng, 0.0);
        loop {
            if trial.loses() {
                losses += 1;
                break;
            }
            let wait = -(-unit(&mut rng)).ln_1p() / trial.rate();
            if wait >= trial.left() {
                break;
            }
            trial.now += wait;
            trial.forget();
            trial.fail(&mut rng, 0.0);
        }
    }
    losses as f64 / first_failures as f64
}

#[test]
fn forced_failures_find_what_a_plain_simulation_finds() {
    // Rates so high that the plain one sees losses: a tenth of the disks fail within a rebuild.
    let mut rng = Rng::new(5);
    let stripes = (0..300)
        .map(|_| {
            let mut disks: Vec<u16> = (0..12).collect();
            rng.shuffle(&mut disks);
            disks.truncate(4);
            disks
        })
        .collect();
    let mut model = Model::of_disks(12, 1, stripes);
    model.server_of = (0..12).map(|disk| disk / 3).collect();
    model.servers = 4;
    model.disk_rate = 1e-5;
    model.server_rate = 5e-6;
    model.disk_rebuild = 1000.0;
    model.server_rebuild = 3000.0;
    let model = Model::new(model);
    let forced = simulate(&model, Plan { trials: Some(4000), ..PLAN });
    let forced = 1.0 / forced.mttdl.unwrap() / model.first_rate();
    let seen = plain(&model, 4000, 2);
    let error = (seen * (1.0 - seen) / 4000.0).sqrt();
    assert!((forced - seen).abs() < 5.0 * error, "{forced} is not {seen} ± {error}");
    assert!(seen > 10.0 * error, "the plain simulation saw enough: {seen}");
}

fn tier_model(design: &str, change: impl FnOnce(&mut Design), stripes: u64) -> Model {
    let path = format!("{}/../../docs/plan/examples/{design}.toml", env!("CARGO_MANIFEST_DIR"));
    let mut design = Design::read(path.as_ref()).unwrap();
    change(&mut design);
    let library = Library::built_in();
    let system = design.resolve(&library).unwrap();
    let evaluation = crate::evaluate::evaluate(&system);
    let tier = &evaluation.tiers[0];
    let server = tier.rebuild_unit.as_ref().map(|time| time.value);
    Model::of(&system.tiers[0], (tier.rebuild.value, server), stripes).unwrap()
}

#[test]
fn the_placement_keeps_two_strips_of_a_stripe_off_one_server() {
    // Eight servers of 24 disks; six strips, so each server has at most one of a stripe.
    let model = tier_model("nvme-cluster", |_| {}, 2000);
    for stripe in &model.stripes {
        let mut servers: Vec<usize> =
            stripe.iter().map(|disk| model.server_of[usize::from(*disk)]).collect();
        servers.sort_unstable();
        servers.dedup();
        assert_eq!(servers.len(), 6);
    }
    // So all disks of one server, and of another, may go: two strips of a stripe at most.
    let mut trial = Trial::new(&model);
    for server in 0..3 {
        let disks = (0..model.disks).filter(|disk| model.server_of[*disk] == server).collect();
        trial.failed.push(Failed { disks, server: None, start: 0.0, end: 1.0 });
        assert_eq!(trial.loses(), server == 2, "after {} servers", server + 1);
    }
}

#[test]
fn a_stripe_that_was_rebuilt_is_lost_no_more() {
    let mut model = Model::of_disks(3, 1, vec![vec![0, 1]; 100]);
    model.disk_rebuild = 10.0;
    let failed = |disk, start, end| Failed { disks: vec![disk], server: None, start, end };
    let mut trial = Trial::new(&model);
    trial.failed = vec![failed(0, 0.0, 10.0), failed(1, 10.0, 20.0)];
    trial.now = 5.0;
    assert!(trial.loses(), "the second half of the stripes is not rebuilt");
    trial.now = 10.0;
    assert!(!trial.loses(), "the first disk's strips are all there");
    trial.failed[1].disks = vec![2];
    trial.now = 0.0;
    assert!(!trial.loses(), "no stripe lies on both");
}

#[test]
fn servers_that_are_lost_whole_make_losses_likelier() {
    let without = tier_model("audit-03-rebuild", |_| {}, 4000);
    let mut with = without.clone();
    let plan = Plan { trials: Some(500), stripes: 4000, seed: 3 };
    let mut none = without;
    none.server_rate = 0.0;
    with.server_rate = 10.0 * with.disk_rate;
    let (none, with) = (simulate(&none, plan), simulate(&with, plan));
    assert!(with.loss_per_year > 5.0 * none.loss_per_year, "{with:?} {none:?}");
    assert_eq!(simulate(&tier_model("audit-03-rebuild", |_| {}, 4000), plan).seed, 3);
}

#[test]
fn stripes_beyond_the_sample_count_as_those_in_it() {
    let all = tier_model("audit-03-rebuild", |_| {}, 300);
    let mut sampled = Model { stripes: all.stripes[..30].to_vec(), ..all.clone() };
    sampled.beyond = sampled.beyond.map(|(_, spread)| (270, spread));
    let mut alone = all.clone();
    alone.beyond = None;
    let plan = Plan { trials: Some(3000), stripes: 0, seed: 4 };
    let (sampled, alone) = (simulate(&Model::new(sampled), plan), simulate(&alone, plan));
    let error = sampled.error.hypot(alone.error);
    // The sample is one of many, so it has an error of its own.
    let bound = 4.0 * error + 0.05 * alone.loss_per_year;
    let apart = (sampled.loss_per_year - alone.loss_per_year).abs();
    assert!(apart < bound, "{sampled:?} {alone:?}");
    // Three hundred stripes do not hold every three disks; a full file system does.
    let full = simulate(&all, plan);
    assert!(full.loss_per_year > 1.2 * alone.loss_per_year, "{full:?} {alone:?}");
}

/// Six groups of three disks; each draw takes 40 other stripes of the placement.
#[test]
fn what_is_lost_beyond_the_sample_is_what_samples_lose() {
    let failed = |disk: usize, start, end| Failed { disks: vec![disk], server: None, start, end };
    // The first is half rebuilt and the others wait. Four of six groups: with 4+2p any three of
    // them may lose a stripe, so the fourth meets stripes that three have not lost.
    let all = || {
        [failed(0, 0.0, 10.0), failed(3, 10.0, 20.0), failed(6, 20.0, 30.0), failed(9, 30.0, 40.0)]
    };
    let members = (0..18).map(|disk| (SlotIndex(disk), u32::from(disk / 3))).collect();
    let layout = LayoutMap { version: LayoutVersion(1), members };
    let placement = Placement::new(&layout, "4+2p".parse().unwrap()).unwrap();
    let mut model = Model::of_disks(18, 2, Vec::new());
    model.server_of = (0..18).map(|disk| disk / 3).collect();
    model.servers = 6;
    model.beyond = Some((40, Spread { groups: 6, members: 3, width: 6 }));
    let (mut kept, mut lost) = (0, 0);
    for draw in 0..6000_u64 {
        let stripe = |index| placement.stripe(ObjectId(1 + draw * 40 + index), BlockIndex(index));
        let stripes = (0..40).map(|index| stripe(index).iter().map(|slot| slot.0).collect());
        let model = Model::new(Model { stripes: stripes.collect(), ..model.clone() });
        let mut trial = Trial::new(&model);
        (trial.now, trial.failed) = (5.0, all().into_iter().take(3).collect());
        if trial.loses() {
            continue;
        }
        kept += 1;
        trial.failed.extend(all().into_iter().skip(3));
        lost += u32::from(trial.loses());
    }
    let mut trial = Trial::new(&model);
    (trial.now, trial.failed) = (5.0, all().into());
    let (rule, found) = (trial.loses_beyond(), f64::from(lost) / f64::from(kept));
    let error = (rule * (1.0 - rule) / f64::from(kept)).sqrt();
    assert!((rule - found).abs() < 4.0 * error, "{rule} is not {found} ± {error}");
}

#[test]
fn a_seed_gives_the_same_answer_again() {
    let model = tier_model("audit-03-rebuild", |_| {}, 1000);
    let plan = Plan { trials: Some(200), stripes: 1000, seed: 9 };
    assert_eq!(simulate(&model, plan), simulate(&model, plan));
    assert_ne!(simulate(&model, plan), simulate(&model, Plan { seed: 10, ..plan }));
}

#[test]
fn without_a_number_of_trials_it_ends_for_one_reason_or_another() {
    let plan = Plan { trials: None, ..PLAN };
    let good = simulate(&one_group(10, 1), plan);
    assert_eq!(good.ended, Ended::Accurate);
    assert!(good.error <= ERROR_ENOUGH * good.loss_per_year && good.trials >= TRIALS_MIN);
    assert!(good.interval.0 < good.loss_per_year && good.loss_per_year < good.interval.1);
    // Nothing is ever lost: no error is small enough, and the trials end all the same.
    let mut never = one_group(10, 1);
    never.stripes = vec![vec![0]; 200_000];
    let never = simulate(&Model::new(never), plan);
    assert!(never.ended == Ended::WorkLimit || never.ended == Ended::TrialsLimit, "{never:?}");
    assert_eq!((never.losses, never.mttdl), (0, None));
    assert!(never.interval.1 > 0.0, "that none was seen does not say that there is none");
}

#[test]
fn the_last_failure_alone_tells_whether_data_is_lost() {
    let mut rng = Rng::new(21);
    let model = tier_model("nvme-cluster", |_| {}, 500);
    for _ in 0..200 {
        let mut trial = Trial::new(&model);
        for _ in 0..8 {
            trial.fail(&mut rng, 0.0);
            let all = trial.model.stripes.len() as f64;
            let lost = model.stripes.iter().enumerate().any(|(index, stripe)| {
                let strips = stripe.iter().filter(|disk| {
                    trial.failed.iter().any(|failed| {
                        let share = (trial.now - failed.start) / (failed.end - failed.start);
                        failed.disks.contains(&usize::from(**disk))
                            && index as u32 >= (share.clamp(0.0, 1.0) * all) as u32
                    })
                });
                strips.count() > model.tolerates
            });
            assert_eq!(trial.loses(), lost);
            if lost {
                break;
            }
            trial.now += trial.left() * unit(&mut rng);
            trial.forget();
        }
    }
}

#[test]
fn trials_that_are_cut_off_widen_the_answer() {
    let mut busy = one_group(100, 1);
    busy.stripes = vec![vec![0]];
    // Something else fails during each rebuild, so that no trial ends by itself.
    busy.disk_rebuild = 1e9 * YEAR;
    busy.disk_rate = 1.0 / busy.disk_rebuild;
    let busy = Model::new(busy);
    let found = simulate(&busy, Plan { trials: Some(100), ..PLAN });
    assert_eq!(found.losses, 0);
    assert!(found.interval.1 > 0.5 * busy.first_rate() * YEAR, "{found:?}");
}
