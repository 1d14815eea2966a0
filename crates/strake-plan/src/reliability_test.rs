//! The chain against published closed forms, and against the same chain solved another way.

use super::*;

const HOUR: f64 = 3600.0;

fn chain(count: f64, survives: u64, mttf: f64, mttr: f64, unreadable: f64) -> Chain {
    Chain { count, survives, loss_rate: 1.0 / mttf, repair_rate: 1.0 / mttr, unreadable }
}

#[track_caller]
fn within(ours: f64, published: f64, share: f64) {
    assert!((ours / published - 1.0).abs() < share, "{ours} is not {published}");
}

#[test]
fn one_parity_is_the_closed_form_of_patterson_gibson_and_katz() {
    for (n, mttf, mttr) in [(5.0, 1e5, 10.0), (10.0, 1e6, 100.0), (100.0, 1.2e6, 24.0)] {
        let (mttf, mttr) = (mttf * HOUR, mttr * HOUR);
        let (lambda, mu) = (1.0 / mttf, 1.0 / mttr);
        let ours = chain(n, 1, mttf, mttr, 0.0).mttdl();
        // The exact solution of the two-state chain.
        let exact = ((2.0 * n - 1.0) * lambda + mu) / (n * (n - 1.0) * lambda * lambda);
        within(ours, exact, 1e-12);
        // And the usual form of it, for repairs that are much shorter than lives.
        within(ours, mttf * mttf / (n * (n - 1.0) * mttr), 0.02);
    }
}

#[test]
fn two_and_three_parities_are_the_closed_forms_of_raid_6_and_beyond() {
    let (n, mttf, mttr) = (12.0, 1e6 * HOUR, 50.0 * HOUR);
    let two = mttf.powi(3) / (n * (n - 1.0) * (n - 2.0) * mttr.powi(2));
    within(chain(n, 2, mttf, mttr, 0.0).mttdl(), two, 0.01);
    let three = mttf.powi(4) / (n * (n - 1.0) * (n - 2.0) * (n - 3.0) * mttr.powi(3));
    within(chain(n, 3, mttf, mttr, 0.0).mttdl(), three, 0.01);
    // Without redundancy the first of n.
    within(chain(n, 0, mttf, mttr, 0.5).mttdl(), mttf / n, 1e-12);
}

#[test]
fn unreadable_sectors_end_a_rebuild_without_redundancy() {
    let (n, mttf, mttr, u) = (8.0, 1e6 * HOUR, 20.0 * HOUR, 0.15);
    // The first of n fails; then a second one during the repair, or a sector of the others.
    let published = mttf / n / (u + (n - 1.0) * mttr / mttf);
    within(chain(n, 1, mttf, mttr, u).mttdl(), published, 0.01);
    // With two parities the second rebuild is the one at stake.
    let second = (n - 1.0) * mttr / mttf;
    let published = mttf / n / (second * (u + (n - 2.0) * mttr / mttf));
    within(chain(n, 2, mttf, mttr, u).mttdl(), published, 0.01);
}

/// Mean times to absorption by elimination of the chain's equations, state by state from the end.
fn by_elimination(c: &Chain) -> f64 {
    let states = c.survives as usize + 1;
    let mut matrix = vec![vec![0.0; states + 1]; states];
    for (state, row) in matrix.iter_mut().enumerate() {
        let last = state + 1 == states;
        let u = if last && state > 0 { c.unreadable } else { 0.0 };
        let repair = if state == 0 { 0.0 } else { c.repair_rate };
        let loss = (c.count - state as f64) * c.loss_rate + u * repair;
        let back = repair * (1.0 - u);
        row[state] = loss + back;
        if state > 0 {
            row[state - 1] = -back;
        }
        if !last {
            row[state + 1] = -loss;
        }
        row[states] = 1.0;
    }
    for pivot in 0..states {
        for row in pivot + 1..states {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let above = matrix[pivot].clone();
            matrix[row].iter_mut().zip(above).for_each(|(cell, up)| *cell -= factor * up);
        }
    }
    for pivot in (0..states).rev() {
        let value = matrix[pivot][states] / matrix[pivot][pivot];
        matrix[pivot][states] = value;
        for row in &mut matrix[..pivot] {
            row[states] -= row[pivot] * value;
        }
    }
    matrix[0][states]
}

#[test]
fn the_recursion_solves_the_equations_of_the_chain() {
    let mut rng = strake_env::Rng::new(11);
    for _ in 0..200 {
        let c = Chain {
            count: (5 + rng.below(200)) as f64,
            survives: rng.below(4),
            loss_rate: 1e-6 * (1 + rng.below(1000)) as f64,
            repair_rate: 1e-4 * (1 + rng.below(1000)) as f64,
            unreadable: rng.below(100) as f64 / 200.0,
        };
        within(c.mttdl(), by_elimination(&c), 1e-6);
    }
}

#[test]
fn more_than_counts_every_way_to_be_down() {
    for (count, most, share) in [(6_u64, 1_u64, 0.1_f64), (8, 2, 0.3), (2, 1, 0.01), (5, 0, 0.2)] {
        let mut by_hand = 0.0;
        for ways in 0..1_u64 << count {
            let down = ways.count_ones();
            if u64::from(down) > most {
                by_hand +=
                    share.powi(down as i32) * (1.0 - share).powi((count as u32 - down) as i32);
            }
        }
        within(more_than(count, most, share), by_hand, 1e-12);
    }
    assert_eq!(more_than(3, 3, 0.5), 0.0);
}
