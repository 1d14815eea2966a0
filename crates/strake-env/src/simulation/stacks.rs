//! The stacks of simulated threads, and switching between them.
//!
//! All threads of a simulation are coroutines on one thread of the operating system, so handing
//! the baton on is a function call and no matter of the kernel's. [`run`] is the loop below them: a
//! thread that hands the baton on returns to the loop with the number of the next thread.
//!
//! **Values of each thread.** A simulated thread keeps those of [`local!`](crate::local!) in
//! [`Own`]. They are dropped when the thread ends.
//!
//! **The end.** Threads that are left at the end of a simulation are not unwound, because their
//! destructors would want decisions of a scheduler that makes none any more. Their stacks are given
//! back. Heap memory of the values on them stays allocated until the process ends.
#![allow(unsafe_code, reason = "a coroutine is suspended from within, and given up at the end")]

use super::scheduler::Here;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;

/// The size of a stack is that of the standard library's threads. Only pages that are touched take
/// memory. A guard page lies below.
const STACK_BYTES: usize = 2 << 20;

/// The thread that runs next; `None` at the end of the simulation.
type Next = Option<usize>;
type Pause = Yielder<(), Next>;

/// The possessions of one simulated thread.
struct Own {
    here: Here,
    /// Suspends the thread. It is null until the thread runs for the first time.
    pause: Cell<*const Pause>,
    /// The values of [`local!`](crate::local!), by the addresses of their declarations. Nobody goes
    /// through them in an order that matters.
    values: RefCell<Vec<(usize, Rc<dyn Any>)>>,
}

/// A simulated thread that does not run at this moment.
struct Fiber {
    own: Rc<Own>,
    routine: Coroutine<(), Next, Next>,
}

thread_local! {
    /// The simulated thread that runs on this thread of the operating system.
    static CURRENT: RefCell<Option<Rc<Own>>> = const { RefCell::new(None) };
    /// The others of its simulation that have not ended.
    static FIBERS: RefCell<BTreeMap<usize, Fiber>> = const { RefCell::new(BTreeMap::new()) };
    /// Stacks of threads that have ended. A new mapping and its page faults cost more than a stack
    /// that was used before.
    static FREE: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

fn current() -> Option<Rc<Own>> {
    // A thread of the operating system that is ending has none any more.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// The simulated thread that this thread is, if it is one.
pub(crate) fn here() -> Option<Here> {
    CURRENT.try_with(|current| current.borrow().as_ref().map(|own| own.here.clone())).ok().flatten()
}

/// The value of a declaration on this thread; `None` if this thread is not simulated.
pub(crate) fn own_value<T: 'static>(key: usize, first: fn() -> T) -> Option<Rc<T>> {
    let own = current()?;
    let find = || own.values.borrow().iter().find(|(at, _)| *at == key).map(|(_, it)| it.clone());
    let value = find().unwrap_or_else(|| {
        let value: Rc<dyn Any> = Rc::new(first());
        own.values.borrow_mut().push((key, Rc::clone(&value)));
        value
    });
    Some(value.downcast().expect("invariant: a declaration has one type"))
}

/// Makes a stack for a thread that was added. It runs `work` when it gets the baton.
///
/// # Errors
/// When the system gives no memory.
pub(super) fn add(here: Here, work: Box<dyn FnOnce()>) -> io::Result<()> {
    let id = here.id();
    let values = RefCell::default();
    let own = Rc::new(Own { here, pause: Cell::new(std::ptr::null()), values });
    let free = FREE.with_borrow_mut(Vec::pop);
    let stack = free.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)?;
    let routine = Coroutine::with_stack(stack, {
        let own = Rc::clone(&own);
        move |pause: &Pause, ()| {
            own.pause.set(pause);
            own.here.run(work)
        }
    });
    FIBERS.with_borrow_mut(|fibers| fibers.insert(id, Fiber { own, routine }));
    Ok(())
}

/// Runs a simulation on this thread of the operating system, from its first thread to its end.
///
/// # Panics
/// When the system gives no memory for the first stack.
pub(super) fn run(first: Here, work: Box<dyn FnOnce()>) {
    let begin = Box::new(move || {
        // The keys of hash maps are drawn when the first one is made. Here they come from the seed.
        let _ = RandomState::new().hash_one(0);
        work();
    });
    let mut next = Some(first.id());
    add(first, begin).expect("the system has memory for a stack");
    while let Some(id) = next {
        let fiber = FIBERS.with_borrow_mut(|fibers| fibers.remove(&id));
        let mut fiber = fiber.expect("invariant: a thread that can run has a stack");
        CURRENT.set(Some(Rc::clone(&fiber.own)));
        let result = fiber.routine.resume(());
        CURRENT.set(None);
        next = match result {
            CoroutineResult::Yield(next) => {
                FIBERS.with_borrow_mut(|fibers| fibers.insert(id, fiber));
                next
            }
            CoroutineResult::Return(next) => {
                let stack = fiber.routine.into_stack();
                FREE.with_borrow_mut(|free| free.push(stack));
                next
            }
        };
    }
    for (_, mut fiber) in FIBERS.take() {
        // Its values may be needed by what is left on the stacks.
        std::mem::forget(Rc::clone(&fiber.own));
        // SAFETY: no thread of this simulation runs again, and all of them ran on this thread of
        // the operating system, so nobody looks at what lies on the stack. What it owns is leaked.
        unsafe { fiber.routine.force_reset() };
    }
}

/// Lets `next` run. Returns when this thread gets the baton again.
///
/// # Panics
/// If this thread is not simulated.
pub(super) fn suspend(next: Next) {
    let pause = current().expect("invariant: a simulated thread runs here").pause.get();
    // SAFETY: it was set on this stack by the function that began the stack and has not returned,
    // so it points to the coroutine that runs.
    unsafe { &*pause }.suspend(next);
}
