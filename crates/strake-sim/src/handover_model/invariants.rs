//! What must always hold.
//!
//! 1. *Nothing is mixed*: strips of one version are of one value ([`always`]).
//! 2. *Nothing is lost*: when the token is granted, every choice of N of the NSDs that are up reads
//!    the same version. Its value is at least as new as the newest value that was acknowledged or
//!    read before. So the block can be read after any further losses that the code tolerates
//!    ([`at_grant`]).
//! 3. *Nothing is published without its grant*: an NSD that is not marked down publishes a client's
//!    strip only while the leader has granted the token to that client ([`at_publish`]).
//! 4. *Versions rise*: an NSD that is not marked down does not refuse the holder's write as too old
//!    ([`at_stale`]).

use super::{Message, Nsd, State};

/// Checks what holds in every state.
pub(super) fn always(state: &State) -> Result<(), String> {
    let strips = || state.nsds.iter().flat_map(|nsd| &nsd.strips);
    for strip in strips() {
        if strips().any(|other| other.version == strip.version && other.value != strip.value) {
            return Err(format!("version {} is a mixture of values", strip.version));
        }
    }
    Ok(())
}

/// Checks a state in which the token is granted. Returns the version and value that a reader finds.
pub(super) fn at_grant(state: &State) -> Result<(u8, u8), String> {
    let mut up = state.nsds.iter().filter(|nsd| nsd.is_up()).map(found);
    let first = up.next().ok_or("no NSD is up")?;
    if up.any(|other| other != first) {
        return Err("NSDs that are up have unequal strips when the token is granted".to_owned());
    }
    if first.1 < state.promised {
        return Err(format!("value {} is found, {} was promised", first.1, state.promised));
    }
    Ok(first)
}

/// The version and value that a reader finds; both are 0 for a hole.
fn found(nsd: &Nsd) -> (u8, u8) {
    nsd.strips.last().map_or((0, 0), |strip| (strip.version, strip.value))
}

/// Checks a strip that a server publishes.
pub(super) fn at_publish(state: &State, message: &Message) -> Result<(), String> {
    let (to, client) = (usize::from(message.to), usize::from(message.client));
    if state.nsds[to].is_reached() && state.token_holder != Some(client) {
        return Err(format!(
            "NSD {} publishes a strip of client {} without a grant",
            message.to, message.client
        ));
    }
    Ok(())
}

/// Checks a strip that a server refuses because it has a newer one.
pub(super) fn at_stale(state: &State, message: &Message) -> Result<(), String> {
    let (to, client) = (usize::from(message.to), usize::from(message.client));
    let write = state.clients[client].write;
    let is_newest = write.is_some_and(|write| write.version == message.version);
    if is_newest && state.nsds[to].is_reached() && state.token_holder == Some(client) {
        return Err(format!(
            "NSD {} refuses the holder's version {} as too old",
            message.to, message.version
        ));
    }
    Ok(())
}
