//! Visits whole scopes, and checks that the model finds a fault when any rule is taken away.

use super::*;

const BASE: Scope = Scope {
    data: 1,
    parity: 1,
    is_new: false,
    writes: 2,
    grants: 2,
    others: 0,
    losses: 0,
    deaths: 0,
    manager_deaths: 0,
    is_symmetric: true,
    kept: 4,
    bugs: &[],
};

/// Several managers die, one after the other, while they resolve what a dead client left. Strips
/// get many versions.
const PILES: Scope = Scope { data: 2, writes: 1, grants: 1, deaths: 1, manager_deaths: 3, ..BASE };
/// Like `PILES`, after a hand-over, with NSDs that keep fewer versions.
const PILES_AFTER_HANDOVER: Scope =
    Scope { data: 2, losses: 1, deaths: 1, manager_deaths: 1, kept: 3, ..BASE };

fn scopes() -> Vec<Scope> {
    vec![
        Scope { others: 1, grants: 4, writes: 4, ..BASE },
        Scope { losses: 1, ..BASE },
        Scope { is_new: true, losses: 1, grants: 3, ..BASE },
        Scope { deaths: 1, losses: 1, manager_deaths: 1, ..BASE },
        Scope { losses: 2, writes: 1, ..BASE },
        Scope { data: 2, losses: 1, ..BASE },
        Scope { data: 2, is_new: true, deaths: 1, losses: 1, writes: 1, grants: 1, ..BASE },
        Scope { parity: 2, deaths: 1, losses: 1, writes: 1, grants: 1, ..BASE },
        PILES,
    ]
}

#[test]
fn every_state_keeps_the_promises() {
    for scope in scopes() {
        let verdict = check(scope);
        println!("{}+{}: {} states", scope.data, scope.parity, verdict.states);
        assert_eq!(verdict.fault, None, "{scope:?}");
        assert!(verdict.states > 1000, "{scope:?} visits only {} states", verdict.states);
    }
}

#[test]
fn every_rule_taken_away_is_missed() {
    for bug in &Bug::ALL {
        let scope = match bug {
            Bug::TrustsTheAccepted => Scope { losses: 2, writes: 1, ..BASE },
            Bug::ListsBelowTheFloor | Bug::TestsNoFloor => Scope { losses: 1, ..BASE },
            Bug::ResolvesWhatIsHeld => BASE,
            Bug::DrawsEarly | Bug::OneGrantPerLife => Scope { others: 1, grants: 3, ..BASE },
            Bug::DeletesWithoutTheToken => Scope { is_new: true, losses: 1, ..BASE },
            Bug::FreesBeforeTheFence | Bug::TestsNoFence => Scope { deaths: 1, ..BASE },
            Bug::DropsTheOldest | Bug::DropsTheCurrent => {
                Scope { grants: 1, ..PILES_AFTER_HANDOVER }
            }
            _ => PILES_AFTER_HANDOVER,
        };
        // The large scopes merge symmetric states. In the others the steps of a fault keep the
        // numbers of clients and NSDs.
        let is_symmetric = scope.manager_deaths > 0;
        fault_of(std::slice::from_ref(bug), Scope { is_symmetric, ..scope });
    }
}

/// Checks that a fault is found.
fn fault_of(bugs: &'static [Bug], scope: Scope) {
    let verdict = check(Scope { bugs, ..scope });
    println!("{bugs:?}: {} states: {:?}", verdict.states, verdict.fault);
    assert!(verdict.fault.is_some(), "{bugs:?} is not found");
}
