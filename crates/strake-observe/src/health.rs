//! How a file system is, one component after the other: green, yellow or red, and why. Each reason
//! that is not green is one of [`EVENTS`], so that scripts and alert rules can name it.
//! `docs/EVENTS.md` is made from that table.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use strake_env::sync::Mutex;

/// How something is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum Colour {
    /// As it should be.
    #[default]
    Green,
    /// Somebody should look at it soon. Nothing is lost.
    Yellow,
    /// Programs fail or stand still, or will soon.
    Red,
}

impl fmt::Display for Colour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Colour::Green => "green",
            Colour::Yellow => "yellow",
            Colour::Red => "red",
        })
    }
}

/// Something that makes a component yellow or red.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name, which never changes its meaning.
    pub id: &'static str,
    /// The component concerned. `nsd` stands for one of the disks.
    pub component: &'static str,
    /// How bad it is.
    pub colour: Colour,
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub act: &'static str,
}

macro_rules! events {
    ($($name:ident $component:literal $colour:ident $id:literal $means:literal $act:literal;)*) => {
        $(
            #[doc = $means]
            pub const $name: Event = Event {
                id: $id,
                component: $component,
                colour: Colour::$colour,
                means: $means,
                act: $act,
            };
        )*
        /// All events, by name.
        pub const EVENTS: &[Event] = &[$($name),*];
    };
}

events! {
    CERTIFICATE_ENDED "certificate" Red "certificate_ended"
        "The node's certificate has ended, so other nodes refuse it."
        "Delete the node on another one, and let it join anew.";
    CERTIFICATE_ENDS "certificate" Yellow "certificate_ends"
        "The node's certificate ends within 30 days."
        "Delete the node on another one before that, and let it join anew.";
    CLOCK_BACK "clock" Red "clock_back"
        "The clock says a time before the file system was made."
        "Set the clock. New files get wrong times until then.";
    DAEMON_DOWN "daemon" Red "daemon_down"
        "No daemon serves the file system."
        "Read the end of `strake.log`, and start it with `strake up`.";
    DAEMON_SILENT "daemon" Red "daemon_silent"
        "The daemon does not answer within ten seconds."
        "Look at the process and at `strake.log`. If it stands still, kill it and start it again: nothing that was made durable is lost.";
    LINK_BAD "links" Yellow "link_bad"
        "This node does not reach another one, and goes through a third."
        "Look at the network between the two. The direct way is taken again by itself.";
    METADATA_AWAY "metadata" Yellow "metadata_away"
        "A copy of the metadata is on a disk that does not answer. A majority of the copies is needed."
        "Bring the disk's node back. If it is lost, delete the node and let a new one take its place.";
    METADATA_COPIES "metadata" Yellow "metadata_copies"
        "The metadata has fewer copies than the code makes of data."
        "Bring back the disks that are down, or replace them.";
    MOUNT_GONE "mount" Red "mount_gone"
        "The file system is mounted nowhere."
        "`strake down` and `strake up` mount it again.";
    NSD_BAD "nsd" Yellow "nsd_bad"
        "Strips or pages of the disk were bad since the start, and not all of them are mended."
        "`strake fs scrub start` mends what can be mended. If it comes again, replace the disk.";
    NSD_DOWN "nsd" Yellow "nsd_down"
        "The disk is not in use. The others make up for it."
        "Bring it back: it is noticed within a second. If it is lost, `strake disk replace` fills a new one.";
    NSD_LEAVING "nsd" Yellow "nsd_leaving"
        "The disk is being emptied or replaced."
        "Wait for the end: `strake disk list` shows how far it is.";
    NSD_LOST "nsd" Red "nsd_lost"
        "The disk is not in use, and more disks are away than the code tolerates."
        "Bring disks back. Until then some files cannot be read or written.";
    NSD_RECOVERING "nsd" Yellow "nsd_recovering"
        "The disk has missed writes and is being brought up to date."
        "Wait for the end: `strake disk list` shows how far it is.";
    NSD_SILENT "nsd" Yellow "nsd_silent"
        "The disk does not tell its space within half a second."
        "See `strake diag waiters` for what holds it up.";
    NSD_SLOW "nsd" Yellow "nsd_slow"
        "In the last ten minutes the disk took three times as long as its peers, or longer."
        "Look at the disk itself. See `strake diag explain slow`.";
    NSD_SUSPENDED "nsd" Yellow "nsd_suspended"
        "The disk gets no new data, because somebody has suspended it."
        "`strake disk resume` ends that.";
    POOL_SMALL "pagepool" Yellow "pool_small"
        "In the last ten minutes programs waited for room in a small page pool."
        "Raise the setting `pagepool`, or leave it out.";
    REQUESTS_HELD "waits" Yellow "requests_held"
        "Something has waited for more than ten seconds."
        "`strake diag waiters` shows it, and who is waited for.";
    REQUESTS_SLOW "requests" Yellow "requests_slow"
        "In the last ten minutes something made programs slow."
        "`strake diag explain slow --since 10m` says more.";
    REQUESTS_STUCK "waits" Red "requests_stuck"
        "Something has waited for more than a minute."
        "`strake diag waiters` shows it, and who is waited for.";
    SPACE_LOW "space" Yellow "space_low"
        "Some disk has less than a sixteenth of its space free."
        "Delete or move files.";
    SPACE_OUT "space" Red "space_out"
        "There is no space for new data."
        "Delete or move files. What is there can be overwritten meanwhile.";
    SPACE_SOON "space" Yellow "space_soon"
        "At the rate of the last day the disks are full within a week."
        "Delete files, or plan for more space.";
}

/// How one component is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Its name, such as `nsd3` or `space`.
    pub name: String,
    /// How it is.
    pub colour: Colour,
    /// The event that made it so. `None` if it is green.
    pub event: Option<String>,
    /// What was seen, in a few words.
    pub text: String,
    /// What to do. Empty if it is green.
    pub act: String,
}

impl Component {
    /// One that is as it should be.
    pub fn green(name: impl Into<String>, text: impl Into<String>) -> Component {
        let (name, text) = (name.into(), text.into());
        Component { name, colour: Colour::Green, event: None, text, act: String::new() }
    }

    /// One with an event.
    pub fn with(name: impl Into<String>, event: &Event, text: impl Into<String>) -> Component {
        Component {
            name: name.into(),
            colour: event.colour,
            event: Some(event.id.to_owned()),
            text: text.into(),
            act: event.act.to_owned(),
        }
    }
}

/// How a file system is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The worst of the components.
    pub colour: Colour,
    /// The components.
    pub components: Vec<Component>,
}

impl Health {
    /// The health of these components.
    pub fn of(components: Vec<Component>) -> Health {
        let colour = components.iter().map(|it| it.colour).max().unwrap_or_default();
        Health { colour, components }
    }
}

/// Prints a line for each component.
///
/// # Errors
/// Those of `out`.
pub fn print_health(out: &mut dyn fmt::Write, health: &Health) -> fmt::Result {
    let width = health.components.iter().map(|it| it.name.len()).max().unwrap_or(0);
    for Component { name, colour, event, text, .. } in &health.components {
        match event {
            Some(event) => writeln!(out, "{colour:<6}  {name:<width$}  {event}: {text}")?,
            None => writeln!(out, "{colour:<6}  {name:<width$}  {text}")?,
        }
    }
    Ok(())
}

/// The space in use is noted this often.
const NOTED_EVERY: Duration = Duration::from_secs(60);
/// It is remembered for so long.
const NOTED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Nothing is said of the future before so much of the past is known.
const KNOWN_MIN: Duration = Duration::from_secs(600);

/// The bytes in use over the last day, from which the time is told when the disks are full.
#[derive(Default)]
pub struct SpaceHistory {
    noted: Mutex<VecDeque<(Duration, u64)>>,
}

impl SpaceHistory {
    /// Notes the bytes in use now, if the last note is old enough.
    pub fn note(&self, now: Duration, used: u64) {
        let mut noted = self.noted.lock();
        if noted.back().is_some_and(|(at, _)| now.saturating_sub(*at) < NOTED_EVERY) {
            return;
        }
        noted.push_back((now, used));
        while noted.front().is_some_and(|(at, _)| now.saturating_sub(*at) > NOTED_FOR) {
            noted.pop_front();
        }
    }

    /// When `free` more bytes are used up, at the rate of the time that is known. `None` if not
    /// enough of that is known, or if the bytes in use do not become more.
    pub fn full_in(&self, free: u64) -> Option<Duration> {
        let noted = self.noted.lock();
        let ((from, before), (to, now)) = (*noted.front()?, *noted.back()?);
        let time = to.saturating_sub(from);
        let more = now.checked_sub(before).filter(|more| *more > 0)?;
        if time < KNOWN_MIN {
            return None;
        }
        let seconds = free as f64 / (more as f64 / time.as_secs_f64());
        Some(Duration::from_secs_f64(seconds.min(1e10)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn the_document_lists_every_event() {
        assert!(EVENTS.is_sorted_by(|a, b| a.id < b.id), "by name, each once");
        let mut text = String::from(
            "# Events\n\n`strake health` names the reason for each component that is yellow or \
             red. This list is made from the\nprogram's own table; write it anew with\n\
             `STRAKE_REGENERATE=1 cargo test -p strake-observe health`.\n\n\
             | event | component | | means | what to do |\n|---|---|---|---|---|\n",
        );
        for Event { id, component, colour, means, act } in EVENTS {
            writeln!(text, "| `{id}` | {component} | {colour} | {means} | {act} |")
                .expect("a string takes all");
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/EVENTS.md");
        if std::env::var_os("STRAKE_REGENERATE").is_some() {
            std::fs::write(path, &text).expect("it can be written");
        }
        let stored = std::fs::read_to_string(path).expect("docs/EVENTS.md");
        assert!(stored == text, "docs/EVENTS.md is stale: see its head");
    }

    #[test]
    fn the_worst_component_decides_and_each_has_a_line() {
        let health = Health::of(vec![
            Component::green("daemon", "process 7"),
            Component::with("nsd2", &NSD_DOWN, "its container is gone"),
        ]);
        assert_eq!(health.colour, Colour::Yellow);
        let mut text = String::new();
        print_health(&mut text, &health).expect("a string takes all");
        assert_eq!(
            text,
            "green   daemon  process 7\nyellow  nsd2    nsd_down: its container is gone\n"
        );
        assert_eq!(Health::of(Vec::new()).colour, Colour::Green);
    }

    #[test]
    fn the_time_until_the_disks_are_full_follows_from_the_last_day() {
        let history = SpaceHistory::default();
        let minutes = |count: u64| Duration::from_secs(60 * count);
        (0..10).for_each(|at| history.note(minutes(at), at * 1000));
        assert_eq!(history.full_in(5000), None, "nine minutes are not enough");
        history.note(minutes(9) + Duration::from_secs(59), 1_000_000);
        history.note(minutes(10), 10_000);
        assert_eq!(history.full_in(5000), Some(minutes(5)), "notes between do not count");
        assert_eq!(history.full_in(0), Some(Duration::ZERO));
        // A day later nothing has been added for a day.
        (11..2000).for_each(|at| history.note(minutes(at), 10_000));
        assert_eq!(history.full_in(5000), None);
        assert!(history.noted.lock().len() <= 24 * 60 + 1);
    }
}
