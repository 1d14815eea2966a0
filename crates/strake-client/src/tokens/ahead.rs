//! Tokens of files that no operation needs yet.

use super::{Tokens, shared};
use std::collections::BTreeSet;
use std::time::Duration;
use strake_proto::Ino;
use strake_token::held::Want;

/// Nothing is fetched ahead while so many files that were asked for earlier are not granted yet. A
/// client may have a limited number of requests that wait.
const LATE_MAX: usize = 64;

impl Tokens {
    /// Whether this client may look at a file without asking for its token.
    pub(crate) fn may_look(&self, ino: Ino) -> bool {
        self.state.lock().holder.usable(ino).covers(&shared(ino))
    }

    /// Asks for tokens to look at files that names led to, and to open them, as far as this client
    /// has nothing of them. The leader is asked once. After that the tokens that other clients must
    /// give up first are waited for, at most `limit`. No operation needs them yet.
    ///
    /// Each file has a request of its own, because a request that waits for one file keeps other
    /// clients from all files that it names.
    pub(crate) fn fetch(&self, files: &[Ino], limit: Duration) {
        let _wait = self.observe.waiters.enter("tokens ahead", format!("{} files", files.len()));
        if !self.lease.is_held() {
            return;
        }
        let mut state = self.state.lock();
        if state.late.len() >= LATE_MAX {
            return;
        }
        let missing: BTreeSet<Ino> = files.iter().copied().collect();
        let missing = missing.into_iter().filter(|ino| state.holder.in_use(*ino).is_empty());
        let missing: Vec<Ino> = missing.collect();
        let (mut asked, mut effects) = (Vec::new(), Vec::new());
        for ino in missing {
            let (number, begins) = state.holder.begin(vec![Want { open: true, ..shared(ino) }]);
            asked.push((number, ino));
            effects.extend(begins);
        }
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
        let end = self.clock.monotonic() + limit;
        let mut state = self.state.lock();
        let mut effects = Vec::new();
        loop {
            asked.retain(|(number, _)| {
                let has_begun = state.begun.remove(number);
                if has_begun {
                    effects.extend(state.holder.end(*number));
                }
                !has_begun
            });
            let left = end.saturating_sub(self.clock.monotonic());
            if asked.is_empty() || left.is_zero() || state.ended || self.lease.is_dead() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        for (number, ino) in asked {
            state.abandoned.insert(number);
            state.late.insert(number, ino);
        }
        let todo = state.absorb(effects);
        drop(state);
        self.perform(todo);
    }
}
