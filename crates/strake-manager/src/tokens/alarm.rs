//! The time until which the authority's thread sleeps. It is woken only when something is due
//! earlier: most messages change nothing about that.

use std::time::Duration;

/// See the file's head.
#[derive(Default)]
pub(super) struct Alarm {
    /// `None` while the thread does not sleep: it looks before it does.
    until: Option<Duration>,
}

impl Alarm {
    /// The thread sleeps until then.
    pub(super) fn set(&mut self, until: Duration) {
        self.until = Some(until);
    }

    /// The thread is awake.
    pub(super) fn stop(&mut self) {
        self.until = None;
    }

    /// Something is due then. Returns whether the thread must be woken for that.
    pub(super) fn rings(&mut self, due: Option<Duration>) -> bool {
        let is_earlier = self.until.zip(due).is_some_and(|(until, due)| due < until);
        if is_earlier {
            // It looks anew before it sleeps again. Until then nobody need wake it again.
            self.until = None;
        }
        is_earlier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_sleeper_is_woken_once_and_only_for_what_is_earlier() {
        let mut alarm = Alarm::default();
        assert!(!alarm.rings(Some(at(1))), "nobody sleeps");
        alarm.set(at(5));
        assert!(!alarm.rings(None) && !alarm.rings(Some(at(5))) && !alarm.rings(Some(at(9))));
        assert!(alarm.rings(Some(at(4))));
        assert!(!alarm.rings(Some(at(3))), "it is awake, and looks");
        alarm.set(at(3));
        alarm.stop();
        assert!(!alarm.rings(Some(at(2))));
    }
}
