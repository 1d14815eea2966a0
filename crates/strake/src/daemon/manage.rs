//! Answers to the requests that change what disks there are and how they are used.

use super::serve::Daemon;
use crate::show::availability_name;
use serde_json::{Value, json};
use std::time::Duration;
use strake_client::NsdView;
use strake_env::{Clock, RealClock};
use strake_proto::layout::NsdAvailability;
use strake_proto::{Error, ErrorKind, Result};

/// How long `disk start` waits for the disk to answer.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
const START_WAIT_STEP: Duration = Duration::from_millis(50);

impl Daemon {
    /// What is known of the disk of that name.
    fn view(&self, disk: &str) -> Result<NsdView> {
        let views = self.vfs.nsds();
        let found = views.iter().find(|view| self.nsd_name(view.nsd) == disk);
        found.cloned().ok_or_else(|| {
            let names: Vec<String> = views.iter().map(|view| self.nsd_name(view.nsd)).collect();
            let detail = format!("no disk '{disk}'; there are {}", names.join(", "));
            Error::new(ErrorKind::Invalid, detail)
        })
    }

    /// `strake disk start`.
    pub(super) fn start_disk(&self, disk: &str) -> Result<Value> {
        self.view(disk)?;
        let end = RealClock.monotonic() + START_WAIT_MAX;
        self.backend.lock().kick();
        self.vfs.look_after_nsds();
        loop {
            let availability = self.view(disk)?.state.availability;
            let name = availability_name(availability);
            match availability {
                NsdAvailability::Up | NsdAvailability::Recovering => {
                    let message = format!("{disk} is {name}");
                    return Ok(json!({ "disk": disk, "availability": name, "message": message }));
                }
                NsdAvailability::Down | NsdAvailability::Unrecovered => {}
            }
            if RealClock.monotonic() >= end {
                let detail = format!(
                    "{disk} is {name} and cannot be used: bring its container or device back to \
                     its place; the end of {} says what is wrong",
                    self.dir.log_path().display()
                );
                return Err(Error::new(ErrorKind::Unreachable, detail));
            }
            RealClock.sleep(START_WAIT_STEP);
        }
    }
}
