//! Makes states equal that no later step can tell apart, so that fewer are visited.

use super::{Bug, Client, Message, Scope, State, has};

/// Forgets what no later step looks at. Sorts NSDs and clients if the scope asks for that.
pub(super) fn normalise(scope: &Scope, state: &mut State) {
    forget(scope, state);
    if scope.is_symmetric {
        order_nsds(state);
        order_clients(state);
    }
    state.network.sort_unstable();
}

fn forget(scope: &Scope, state: &mut State) {
    // A grant sets all of this anew. Only the bugs whose numbers do not rise need the old numbers.
    let remembers = scope.has(Bug::DrawsEarly) || scope.has(Bug::OneGrantPerLife);
    for client in state.clients.iter_mut().filter(|client| !client.holding) {
        let Client { newest, first, counter, .. } = *client;
        *client = Client::default();
        if remembers {
            (client.newest, client.first, client.counter) = (newest, first, counter);
        }
    }
    // Drops strips that will be refused in any case and that no writer waits for.
    let (nsds, clients) = (&state.nsds, &state.clients);
    let is_waited_for = |message: &Message| {
        let write = clients[usize::from(message.client)].write;
        write.is_some_and(|write| write.version == message.version)
    };
    state.network.retain(|message| {
        let nsd = &nsds[usize::from(message.to)];
        let durable = nsd.strips.iter().filter(|strip| strip.durable);
        let newest = durable.map(|strip| strip.version).max().unwrap_or(0);
        is_waited_for(message) || message.version > newest.max(nsd.tombstone)
    });
}

/// Sorts the NSDs by everything that the state says of each.
fn order_nsds(state: &mut State) {
    let key = |at: usize| {
        let messages = state.network.iter().filter(|message| usize::from(message.to) == at);
        let messages: Vec<Message> =
            messages.map(|message| Message { to: 0, ..*message }).collect();
        let masks = |client: &Client| {
            let write = client.write.map(|it| [it.skipped, it.accepted, it.stable]);
            [[client.down, 0, 0], write.unwrap_or_default()].map(|all| all.map(|it| has(it, at)))
        };
        let views: Vec<[[bool; 3]; 2]> = state.clients.iter().map(masks).collect();
        let recovers = state.recovery.is_some_and(|recovery| recovery.at == at);
        let done = state.outcome.is_some_and(|outcome| has(outcome.done, at));
        (&state.nsds[at], messages, views, recovers, done)
    };
    let mut order: Vec<usize> = (0..state.nsds.len()).collect();
    order.sort_by_cached_key(|at| {
        let (nsd, messages, views, recovers, done) = key(*at);
        (nsd.clone(), messages, views, recovers, done)
    });
    if order.is_sorted() {
        return;
    }
    let place = |at: usize| order.iter().position(|old| *old == at).unwrap_or(at);
    let moved = |mask: u8| {
        (0..order.len()).filter(|at| has(mask, *at)).fold(0u8, |all, at| all | 1 << place(at))
    };
    let old = std::mem::take(&mut state.nsds);
    state.nsds = order.iter().map(|at| old[*at].clone()).collect();
    for strip in state.nsds.iter_mut().flat_map(|nsd| &mut nsd.strips) {
        strip.lacks = moved(strip.lacks);
    }
    for client in &mut state.clients {
        client.down = moved(client.down);
        if let Some(write) = &mut client.write {
            write.skipped = moved(write.skipped);
            write.accepted = moved(write.accepted);
            write.stable = moved(write.stable);
        }
    }
    for message in &mut state.network {
        message.to = place(message.to.into()) as u8;
        message.lacks = moved(message.lacks);
    }
    if let Some(recovery) = &mut state.recovery {
        recovery.at = place(recovery.at);
    }
    if let Some(outcome) = &mut state.outcome {
        outcome.done = moved(outcome.done);
    }
}

fn order_clients(state: &mut State) {
    let key = |who: usize| {
        let messages = state.network.iter().filter(|message| usize::from(message.client) == who);
        let fenced: Vec<bool> = state.nsds.iter().map(|nsd| has(nsd.fenced, who)).collect();
        let versions: Vec<(u8, u8)> = messages.map(|one| (one.version, one.to)).collect();
        (
            &state.clients[who],
            state.token_holder == Some(who),
            has(state.dead, who),
            fenced,
            versions,
        )
    };
    if key(0) <= key(1) {
        return;
    }
    let swapped = |mask: u8| (mask & 1) << 1 | mask >> 1 & 1;
    state.clients.swap(0, 1);
    state.token_holder = state.token_holder.map(|who| 1 - who);
    state.drawn = state.drawn.map(|(who, number)| (1 - who, number));
    state.dead = swapped(state.dead);
    state.nsds.iter_mut().for_each(|nsd| nsd.fenced = swapped(nsd.fenced));
    state.network.iter_mut().for_each(|message| message.client = 1 - message.client);
}
