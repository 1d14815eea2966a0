//! Threads that the scheduler runs, where the thread that spawns them is simulated.

use super::scheduler::Here;
use super::stacks::{self, here};
use parking_lot::Mutex;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

/// Makes a thread, as [`std::thread::Builder`].
#[derive(Debug)]
pub struct Builder {
    inner: std::thread::Builder,
    name: Option<String>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// A thread without a name.
    pub fn new() -> Builder {
        Builder { inner: std::thread::Builder::new(), name: None }
    }

    /// A thread of that name.
    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder { inner: self.inner.name(name.clone()), name: Some(name) }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When the system gives no more threads.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let Some(here) = here() else {
            return Ok(JoinHandle(Handle::Plain(self.inner.spawn(work)?)));
        };
        let simulated = Simulated::start(&here, self.name, None, work)?;
        here.point("spawn", Location::caller());
        Ok(JoinHandle(Handle::Simulated(simulated)))
    }

    /// Starts it in a scope.
    ///
    /// # Errors
    /// When the system gives no more threads.
    #[track_caller]
    pub fn spawn_scoped<'scope, 'env, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        let Some(here) = here() else {
            let inner = self.inner.spawn_scoped(&scope.inner, work)?;
            return Ok(ScopedJoinHandle(Handle::Plain(inner)));
        };
        let simulated = Simulated::start(&here, self.name, Some(scope.number()), work)?;
        here.point("spawn", Location::caller());
        Ok(ScopedJoinHandle(Handle::Simulated(simulated)))
    }
}

/// Starts a thread, as [`std::thread::spawn`].
///
/// # Panics
/// When the system gives no more threads.
#[track_caller]
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).expect("the system has threads left")
}

/// A thread's end.
#[derive(Debug)]
enum Handle<H, T> {
    Plain(H),
    Simulated(Simulated<T>),
}

/// A simulated thread.
#[derive(Debug)]
struct Simulated<T> {
    id: usize,
    thread: Thread,
    /// Its result, which is there before the thread ends.
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Simulated<T> {
    /// Starts a thread. If it has a scope, the scope waits for its end.
    #[allow(unsafe_code, reason = "a thread of a scope borrows for less than for ever")]
    fn start<'work>(
        here: &Here,
        name: Option<String>,
        scope: Option<usize>,
        work: impl FnOnce() -> T + 'work,
    ) -> io::Result<Simulated<T>>
    where
        T: 'work,
    {
        let there = here.add(name.clone(), scope);
        let id = there.id();
        let result = Arc::new(Mutex::new(None));
        let work: Box<dyn FnOnce() + 'work> = Box::new({
            let result = Arc::clone(&result);
            move || *result.lock() = Some(work())
        });
        // SAFETY: only the lifetime changes. A thread without a scope borrows nothing, as `spawn`
        // says. A thread of a scope has ended before the scope returns: its stack and its values
        // are gone before any other thread runs. A scope of a simulation that failed never returns.
        let work: Box<dyn FnOnce()> = unsafe { std::mem::transmute(work) };
        let (name, number) = (name.map(Arc::from), there.identity());
        let thread = Thread(Who::Simulated { number, name });
        stacks::add(there.clone(), work).inspect_err(|_| there.withdraw())?;
        Ok(Simulated { id, thread, result })
    }

    fn join(self, place: super::Place) -> T {
        let here = here().expect("only a simulated thread joins a simulated thread");
        here.join(self.id, place);
        self.result.lock().take().expect("invariant: a thread that panics ends the simulation")
    }

    fn is_finished(&self) -> bool {
        here().is_some_and(|here| here.has_ended(self.id))
    }
}

/// A thread's end, as [`std::thread::JoinHandle`].
#[derive(Debug)]
pub struct JoinHandle<T>(Handle<std::thread::JoinHandle<T>, T>);

/// A thread, as [`std::thread::Thread`].
#[derive(Clone, Debug)]
pub struct Thread(Who);

#[derive(Clone, Debug)]
enum Who {
    Plain(std::thread::Thread),
    Simulated { number: u64, name: Option<Arc<str>> },
}

/// Tells a thread from all others of the process, as [`std::thread::ThreadId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(Result<std::thread::ThreadId, u64>);

impl Thread {
    /// Its identity.
    pub fn id(&self) -> ThreadId {
        ThreadId(match &self.0 {
            Who::Plain(thread) => Ok(thread.id()),
            Who::Simulated { number, .. } => Err(*number),
        })
    }

    /// Its name, if it has one.
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Who::Plain(thread) => thread.name(),
            Who::Simulated { name, .. } => name.as_deref(),
        }
    }
}

/// The calling thread, as [`std::thread::current`].
pub fn current() -> Thread {
    let Some(here) = here() else { return Thread(Who::Plain(std::thread::current())) };
    Thread(Who::Simulated { number: here.identity(), name: Some(here.name().into()) })
}

/// Where threads are spawned that may borrow, as [`std::thread::Scope`].
#[repr(transparent)]
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    inner: std::thread::Scope<'scope, 'env>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts a thread in the scope.
    ///
    /// # Panics
    /// When the system gives no more threads.
    #[track_caller]
    pub fn spawn<T: Send + 'scope>(
        &'scope self,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        Builder::new().spawn_scoped(self, work).expect("the system has threads left")
    }

    /// What tells it from other scopes that are open.
    fn number(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Waits for the threads that nobody has joined.
    fn close(&self, here: &Here, place: super::Place) {
        while let Some(id) = here.any_of_scope(self.number()) {
            here.join(id, place);
        }
    }
}

/// The end of a thread of a scope, as [`std::thread::ScopedJoinHandle`].
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T>(Handle<std::thread::ScopedJoinHandle<'scope, T>, T>);

/// Both kinds of ends have what the standard library's have.
macro_rules! as_plain_ends {
    ($($end:ty),+) => {$(
        impl<T> $end {
            /// Waits for its end.
            ///
            /// # Errors
            /// What it panicked with.
            #[track_caller]
            pub fn join(self) -> std::thread::Result<T> {
                match self.0 {
                    Handle::Plain(handle) => handle.join(),
                    Handle::Simulated(thread) => Ok(thread.join(Location::caller())),
                }
            }

            /// The thread itself.
            pub fn thread(&self) -> Thread {
                match &self.0 {
                    Handle::Plain(handle) => Thread(Who::Plain(handle.thread().clone())),
                    Handle::Simulated(simulated) => simulated.thread.clone(),
                }
            }

            /// Whether it has ended.
            pub fn is_finished(&self) -> bool {
                match &self.0 {
                    Handle::Plain(handle) => handle.is_finished(),
                    Handle::Simulated(thread) => thread.is_finished(),
                }
            }
        }
    )+};
}

as_plain_ends!(JoinHandle<T>, ScopedJoinHandle<'_, T>);

/// Opens a scope and waits for all its threads, as [`std::thread::scope`].
#[allow(unsafe_code, reason = "the scope in its wrapper")]
#[track_caller]
pub fn scope<'env, T>(work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let place = Location::caller();
    std::thread::scope(|inner| {
        // SAFETY: `Scope` is a transparent wrapper, and the reference keeps its lifetime.
        let scope: &Scope<'_, 'env> = unsafe { &*std::ptr::from_ref(inner).cast() };
        let Some(here) = here() else { return work(scope) };
        match catch_unwind(AssertUnwindSafe(|| work(scope))) {
            Ok(result) => {
                scope.close(&here, place);
                result
            }
            // The other threads may wait for this one, and would never end.
            Err(payload) => here.fail(super::scheduler::panic_text(&*payload)),
        }
    })
}

/// Lets others run, as [`std::thread::yield_now`]. A simulated thread sleeps for a moment, so that
/// one that looks at something again and again does not keep the others from running.
#[track_caller]
pub fn yield_now() {
    match here() {
        Some(here) => here.sleep(super::MOMENT, Location::caller()),
        None => std::thread::yield_now(),
    }
}
