//! Answers requests about the trace.

use super::serve::Daemon;
use crate::admin::TracePart;
use std::collections::BTreeMap;
use strake_observe::trace::Event;
use strake_observe::{Labels, TraceEvent, TraceQuestion, TraceReport, TraceStatus, trace_report};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// One part of a list of events has at most so many.
const PART_EVENTS: usize = 10_000;

impl Daemon {
    /// What the trace has recorded.
    ///
    /// # Errors
    /// `NotFound` if there was none since the start.
    fn traced(&self) -> Result<(TraceStatus, Vec<(u64, Event)>)> {
        self.observe.trace.snapshot().ok_or_else(|| {
            let detail = "there is no trace: `strake diag trace start` starts one";
            Error::new(ErrorKind::NotFound, detail)
        })
    }

    fn labels(&self, events: &[(u64, Event)]) -> Labels {
        let nsds = self.life().array.nsds().into_iter().map(|view| view.nsd);
        let names: BTreeMap<NsdId, String> = nsds.map(|nsd| (nsd, self.nsd_name(nsd))).collect();
        self.observe.trace.labels(events, names)
    }

    /// The report of the trace.
    ///
    /// # Errors
    /// `NotFound` if there is no trace.
    pub(super) fn trace_report(&self, question: &TraceQuestion) -> Result<TraceReport> {
        let (status, events) = self.traced()?;
        Ok(trace_report::report(status, &events, &self.labels(&events), question))
    }

    /// A part of the events, from number `from` on.
    ///
    /// # Errors
    /// `NotFound` if there is no trace.
    pub(super) fn trace_part(&self, question: &TraceQuestion, from: u64) -> Result<TracePart> {
        let (_, mut events) = self.traced()?;
        events.retain(|(number, event)| *number >= from && question.concerns(event));
        let next = events.get(PART_EVENTS).map(|(number, _)| *number);
        events.truncate(PART_EVENTS);
        let labels = self.labels(&events);
        let events = events.iter().map(|(number, event)| TraceEvent::of(*number, event)).collect();
        Ok(TracePart { events, labels, next })
    }
}
