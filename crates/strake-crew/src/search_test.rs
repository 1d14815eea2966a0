//! The search believes only what a node says of itself, waits for no silent node twice, and asks
//! each node one question at a time.

use super::*;
use std::collections::BTreeMap;
use strake_env::net::SocketAddr;
use strake_env::{Clock, RealClock};
use strake_net::{Introduction, SharedSecret};

const FS: FsId = FsId(3);

/// How a node answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Serves,
    ServesNot,
    /// Not before it is told otherwise.
    Silent,
    Refuses,
}

/// Nodes that answer as they are told.
struct World {
    answers: Mutex<BTreeMap<String, Answer>>,
    changed: Condvar,
    /// Questions that each node was asked, and those under way.
    asked: Mutex<BTreeMap<String, (u32, u32)>>,
}

fn place(name: &str) -> Place {
    let number: u16 = name[1..].parse().expect("a number");
    let address = SocketAddr::from(([127, 0, 0, 1], number));
    Place { node: name.parse().expect("a name"), address }
}

impl World {
    fn new(answers: &[(&str, Answer)]) -> Arc<World> {
        let answers = answers.iter().map(|(name, answer)| ((*name).to_owned(), *answer));
        let answers = Mutex::new(answers.collect());
        Arc::new(World { answers, changed: Condvar::new(), asked: Mutex::default() })
    }

    fn tell(&self, name: &str, answer: Answer) {
        self.answers.lock().insert(name.to_owned(), answer);
        self.changed.notify_all();
    }

    fn ask(&self, place: &Place) -> Result<bool> {
        let name = place.node.as_str().to_owned();
        {
            let mut asked = self.asked.lock();
            let (all, now) = asked.entry(name.clone()).or_default();
            (*all, *now) = (*all + 1, *now + 1);
            assert_eq!(*now, 1, "one question at a time");
        }
        let mut answers = self.answers.lock();
        let is_silent = |answers: &mut BTreeMap<_, _>| answers[&name] == Answer::Silent;
        self.changed.wait_while(&mut answers, is_silent);
        self.asked.lock().get_mut(&name).expect("it was asked").1 -= 1;
        match answers[&name] {
            Answer::Serves => Ok(true),
            Answer::ServesNot => Ok(false),
            Answer::Silent | Answer::Refuses => Err(ErrorKind::Unreachable.into()),
        }
    }

    fn search(self: &Arc<World>) -> Arc<Search> {
        let (of_places, of_ask) = (Arc::clone(self), Arc::clone(self));
        let candidates =
            move || Ok(of_places.answers.lock().keys().map(|name| place(name)).collect());
        let ask = move |place: &Place| of_ask.ask(place);
        let introduce: Introduce =
            Arc::new(|_| Introduction::from(SharedSecret::of_words(b"of the nodes")));
        Search::new(&introduce, FS, candidates, ask, Arc::new(()))
    }
}

/// Searches until a node is found.
fn find(search: &Arc<Search>) -> Place {
    loop {
        match search.find() {
            Ok(place) => return place,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable),
        }
        RealClock.sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_node_is_found_that_says_that_it_serves_wherever_that_is_now() {
    use Answer::{Refuses, Serves, ServesNot};
    let world = World::new(&[("n1", ServesNot), ("n2", Serves), ("n3", Refuses)]);
    let search = world.search();
    assert_eq!(search.last(), None);
    assert_eq!(find(&search), place("n2"));
    world.tell("n2", ServesNot);
    assert_eq!(search.find().expect_err("nobody").kind(), ErrorKind::Unreachable);
    assert_eq!(search.last(), Some(place("n2")), "it may come back");
    world.tell("n3", Serves);
    assert_eq!(find(&search), place("n3"));
    assert_eq!(search.last(), Some(place("n3")));
}

#[test]
fn a_silent_node_holds_up_no_search_and_is_heard_when_it_speaks() {
    use Answer::{Refuses, Serves, ServesNot, Silent};
    let world = World::new(&[("n1", Silent), ("n2", Serves), ("n3", ServesNot)]);
    let search = world.search();
    assert_eq!(find(&search), place("n2"), "the first one that says so ends the search");
    // The question to it ends without an answer.
    world.tell("n1", Refuses);
    let is_known = || search.state.lock().silent.contains(&place("n1").node);
    while !is_known() {
        RealClock.sleep(Duration::from_millis(5));
    }
    world.tell("n1", Silent);
    world.tell("n2", ServesNot);
    for _ in 0..3 {
        assert_eq!(search.find().expect_err("nobody").kind(), ErrorKind::Unreachable);
    }
    assert_eq!(world.asked.lock()["n1"], (2, 1), "the second question is still under way");
    world.tell("n1", Serves);
    assert_eq!(find(&search), place("n1"));
}
