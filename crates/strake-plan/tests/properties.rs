//! Properties that hold for every design, checked on seeded random ones.
//!
//! `STRAKE_SEED=… cargo test -p strake-plan --test properties` replays one seed.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use strake_plan::design::{
    ClientChoice, Design, Holds, RackChoice, ServerChoice, StorageChoice, TierChoice, Workload,
};
use strake_plan::evaluate::{Evaluation, evaluate};
use strake_plan::library::{AdapterKind, Library};
use strake_plan::solve::{Objective, Wanted, solve};
use strake_plan::stage::Metric;
use strake_plan::unit::{Capacity, GIB, MIB, TIB};

/// A small generator of its own (xorshift64*), so that a seed means the same for ever.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("STRAKE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=60).collect(),
    }
}

/// A random design that resolves.
fn random_design(library: &Library, chance: &mut Chance) -> Design {
    let enclosures: Vec<_> = library.enclosures.values().collect();
    let servers: Vec<_> = library.servers.keys().cloned().collect();
    let codes: Vec<_> = library.codes.keys().cloned().collect();
    let kind = |kind| -> Vec<String> {
        let of_kind = library.adapters.values().filter(|adapter| adapter.kind == kind);
        of_kind.map(|adapter| adapter.name.clone()).collect()
    };
    let (lans, hbas) = (kind(AdapterKind::Lan), kind(AdapterKind::Sas));
    loop {
        let enclosure = *chance.pick(&enclosures);
        let disks: Vec<_> = library
            .disks
            .values()
            .filter(|disk| enclosure.disk_classes.contains(&disk.class))
            .collect();
        let clients = ClientChoice {
            model: chance.pick(&servers).clone(),
            count: 1 + chance.below(64),
            lan: Some(chance.pick(&lans).clone()),
            lan_per_client: 1 + chance.below(2),
            queue_depth: None,
        };
        let design = Design {
            title: "random".into(),
            notes: None,
            filesystem: None,
            rack: RackChoice::default(),
            clients: (chance.below(2) == 0).then_some(clients),
            mix: Vec::new(),
            tier: vec![TierChoice {
                name: "data".into(),
                blocks: 1 + chance.below(20),
                workload: Workload::Streaming,
                holds: Holds::Both,
                replicas: 1 + chance.below(2),
                failure_group: None,
                storage: StorageChoice {
                    enclosure: enclosure.name.clone(),
                    per_block: 1 + chance.below(6),
                    trays: chance.below(3),
                    disk: chance.pick(&disks).name.clone(),
                    disks_per_tray: None,
                    code: chance.pick(&codes).clone(),
                    block_size: Some(Capacity(0.25 * MIB * f64::from(1 << chance.below(7)))),
                    segment: None,
                    write_cache: None,
                    parity: None,
                    spares: chance.below(3),
                    rebuild_share: None,
                    strips_share_disks: false,
                },
                servers: Some(ServerChoice {
                    model: chance.pick(&servers).clone(),
                    per_block: 1 + chance.below(4),
                    lan: Some(chance.pick(&lans).clone()),
                    lan_per_server: 1 + chance.below(4),
                    hba: (chance.below(2) == 0).then(|| chance.pick(&hbas).clone()),
                    hba_per_server: 1 + chance.below(4),
                    switch: None,
                    switches_per_block: 1,
                }),
            }],
        };
        if design.resolve(library).is_ok() {
            return design;
        }
    }
}

fn evaluated(library: &Library, design: &Design) -> Evaluation {
    let evaluation = evaluate(&design.resolve(library).unwrap());
    evaluation.check();
    evaluation
}

fn for_random_designs(check: impl Fn(u64, &Library, &Design, &Evaluation)) {
    let library = Library::built_in();
    for seed in seeds() {
        let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let design = random_design(&library, &mut chance);
        check(seed, &library, &design, &evaluated(&library, &design));
    }
}

#[test]
fn every_figure_follows_from_its_derivation_and_only_the_bottleneck_has_no_excess() {
    for_random_designs(|seed, _, design, evaluation| {
        for rate in &evaluation.tiers[0].rates {
            let least = rate.balance.iter().map(|stage| stage.times).fold(f64::INFINITY, f64::min);
            assert!((least - 1.0).abs() < 1e-9, "seed {seed}: {design:?}: {rate:?}");
            let gate = rate.balance.iter().find(|stage| stage.stage == rate.bottleneck).unwrap();
            assert!((gate.times - 1.0).abs() < 1e-9, "seed {seed}: the named gate gates");
        }
        assert!(evaluation.usable.value <= evaluation.raw.value, "seed {seed}");
    });
}

#[test]
fn more_of_what_does_not_gate_changes_no_rate() {
    for_random_designs(|seed, library, design, before| {
        for (metric, stage, more) in more_of() {
            let rate = before.tiers[0].rate(metric);
            // A stage as narrow as the bottleneck gates together with it.
            let wide = rate.balance.iter().any(|s| s.stage == stage && s.times > 1.0 + 1e-9);
            if !wide {
                continue;
            }
            let mut larger = design.clone();
            more(&mut larger);
            if larger.resolve(library).is_err() {
                continue;
            }
            let after = evaluated(library, &larger).tiers[0].rate(metric).total.value;
            let (name, value) = (metric.label(), rate.total.value);
            assert!(after == value, "seed {seed}: more {stage}: {name} {value} became {after}");
        }
    });
}

type Change = fn(&mut Design);
type More = (Metric, &'static str, Change);

/// Changes that add to exactly one stage.
fn more_of() -> Vec<More> {
    let stages: [(&str, Change); 3] = [
        ("server network", |d| d.tier[0].servers.as_mut().unwrap().lan_per_server += 1),
        ("server storage ports", |d| d.tier[0].servers.as_mut().unwrap().hba_per_server += 1),
        ("client network", |d| {
            if let Some(clients) = &mut d.clients {
                clients.lan_per_client += 1;
            }
        }),
    ];
    let all = |(stage, more): (&'static str, Change)| {
        Metric::ALL.into_iter().map(move |metric| (metric, stage, more))
    };
    stages.into_iter().flat_map(all).collect()
}

#[test]
fn more_of_anything_never_lowers_a_rate() {
    let changes: [(&str, Change); 5] = [
        ("block", |d| d.tier[0].blocks += 1),
        ("enclosure", |d| d.tier[0].storage.per_block += 1),
        ("server", |d| d.tier[0].servers.as_mut().unwrap().per_block += 1),
        ("network", |d| d.tier[0].servers.as_mut().unwrap().lan_per_server += 1),
        ("clients", |d| {
            if let Some(clients) = &mut d.clients {
                clients.count += 1;
            }
        }),
    ];
    for_random_designs(|seed, library, design, before| {
        for (what, change) in changes {
            let mut larger = design.clone();
            change(&mut larger);
            // Slots are full, or the enclosure brings its own servers.
            if larger.resolve(library).is_err() {
                continue;
            }
            let after = evaluated(library, &larger);
            for metric in Metric::ALL {
                let (old, new) = (before.rate(metric), after.rate(metric));
                assert!(new >= old * (1.0 - 1e-12), "seed {seed}: one more {what}: {old} > {new}");
            }
        }
    });
}

#[test]
fn doubling_all_blocks_and_clients_doubles_everything() {
    for_random_designs(|seed, library, design, before| {
        let mut doubled = design.clone();
        doubled.tier[0].blocks *= 2;
        if let Some(clients) = &mut doubled.clients {
            clients.count *= 2;
        }
        let after = evaluated(library, &doubled);
        let close = |old: f64, new: f64| (new - 2.0 * old).abs() <= 1e-9 * new.abs();
        for metric in Metric::ALL {
            assert!(close(before.rate(metric), after.rate(metric)), "seed {seed}: {metric:?}");
        }
        for (old, new) in [
            (&before.raw, &after.raw),
            (&before.usable, &after.usable),
            (&before.metadata, &after.metadata),
        ] {
            assert!(close(old.value, new.value), "seed {seed}: {}", old.name);
        }
        let (old, new) = (before.inventory.figures(), after.inventory.figures());
        for (old, new) in old.into_iter().zip(new).filter(|(old, _)| old.name != "racks") {
            assert!(close(old.value, new.value), "seed {seed}: {}", old.name);
        }
    });
}

#[test]
fn a_loss_never_raises_a_rate() {
    for_random_designs(|seed, _, _, evaluation| {
        for loss in &evaluation.tiers[0].losses {
            let bounds = loss.at_least.iter().zip(&loss.at_most);
            for (metric, (least, most)) in Metric::ALL.into_iter().zip(bounds) {
                let (least, most) = (least.value, most.value);
                let whole = evaluation.rate(metric);
                assert!(least >= 0.0 && least <= most * (1.0 + 1e-12), "seed {seed}: {loss:?}");
                assert!(most <= whole * (1.0 + 1e-12), "seed {seed}: {loss:?}");
            }
        }
    });
}

#[test]
fn answers_of_solve_satisfy_evaluate() {
    let library = Library::built_in();
    let mut answered = 0;
    for seed in seeds().into_iter().take(6) {
        let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut wish = |unit: f64, most: u64| {
            (chance.below(2) == 0).then(|| unit * (1 + chance.below(most)) as f64)
        };
        let wanted = Wanted {
            usable: wish(TIB, 2000),
            raw: wish(1e12, 3000),
            write: wish(GIB, 40),
            read: wish(GIB, 60),
            iops_write: wish(1000.0, 50),
            iops_read: wish(1000.0, 100),
            racks_max: Some(6),
            ..Wanted::default()
        };
        let Ok(answers) = solve(&library, &wanted, Objective::Racks, 20) else { continue };
        for answer in &answers {
            answered += 1;
            let evaluation = evaluated(&library, &answer.design);
            let text = toml::to_string(&answer.design).unwrap();
            let read_back = Design::parse("answer", &text).unwrap();
            let again = evaluated(&library, &read_back);
            assert!(again.usable.value == evaluation.usable.value, "seed {seed}: {text}");
            let given = [
                (wanted.usable, evaluation.usable.value),
                (wanted.raw, evaluation.raw.value),
                (wanted.write, evaluation.rate(Metric::Write)),
                (wanted.read, evaluation.rate(Metric::Read)),
                (wanted.iops_write, evaluation.rate(Metric::IopsWrite)),
                (wanted.iops_read, evaluation.rate(Metric::IopsRead)),
            ];
            for (wanted, given) in given {
                let enough = wanted.is_none_or(|wanted| given >= wanted * (1.0 - 1e-9));
                assert!(enough, "seed {seed}: {} gives {given}", answer.design.title);
            }
            assert!(evaluation.inventory.racks.value <= 6.0, "seed {seed}");
        }
    }
    assert!(answered > 0 || std::env::var_os("STRAKE_SEED").is_some());
}
