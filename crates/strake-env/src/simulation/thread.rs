//! Threads that the scheduler runs, where the thread that spawns them is simulated.

use super::scheduler::{Here, here};
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

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
            return Ok(JoinHandle { inner: self.inner.spawn(work)?, simulated: None });
        };
        let there = here.add(self.name, None);
        let simulated = Some(there.id());
        let spawned = self.inner.spawn({
            let there = there.clone();
            move || there.run(work)
        });
        let inner = spawned.inspect_err(|_| there.withdraw())?;
        here.point("spawn", Location::caller());
        Ok(JoinHandle { inner, simulated })
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
            return Ok(ScopedJoinHandle { inner, simulated: None });
        };
        let there = here.add(self.name, Some(scope.number()));
        let simulated = Some(there.id());
        let spawned = self.inner.spawn_scoped(&scope.inner, {
            let there = there.clone();
            move || there.run(work)
        });
        let inner = spawned.inspect_err(|_| there.withdraw())?;
        here.point("spawn", Location::caller());
        Ok(ScopedJoinHandle { inner, simulated })
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

/// Waits with the scheduler for the end of a simulated thread, so that the plain join that follows
/// returns at once.
fn await_end(simulated: Option<usize>, place: super::Place) {
    if let (Some(here), Some(id)) = (here(), simulated) {
        here.join(id, place);
    }
}

fn is_finished(simulated: Option<usize>, plain: impl Fn() -> bool) -> bool {
    match (here(), simulated) {
        (Some(here), Some(id)) => here.has_ended(id),
        _ => plain(),
    }
}

/// A thread's end, as [`std::thread::JoinHandle`].
#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
    simulated: Option<usize>,
}

impl<T> JoinHandle<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// What it panicked with.
    #[track_caller]
    pub fn join(self) -> std::thread::Result<T> {
        await_end(self.simulated, Location::caller());
        self.inner.join()
    }

    /// The thread itself.
    pub fn thread(&self) -> &std::thread::Thread {
        self.inner.thread()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        is_finished(self.simulated, || self.inner.is_finished())
    }
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
pub struct ScopedJoinHandle<'scope, T> {
    inner: std::thread::ScopedJoinHandle<'scope, T>,
    simulated: Option<usize>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// What it panicked with.
    #[track_caller]
    pub fn join(self) -> std::thread::Result<T> {
        await_end(self.simulated, Location::caller());
        self.inner.join()
    }

    /// The thread itself.
    pub fn thread(&self) -> &std::thread::Thread {
        self.inner.thread()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        is_finished(self.simulated, || self.inner.is_finished())
    }
}

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
