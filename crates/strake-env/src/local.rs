//! Values that each thread has for itself ([`local!`](crate::local!)).
//!
//! In the product `local!` is the standard library's `thread_local!`. A simulation runs all its
//! threads on one thread of the operating system, so under the feature `simulation` each simulated
//! thread keeps values of its own beside its stack. Other threads have plain ones there, too.

/// Declares values that each thread has for itself, as `thread_local!` does. Each declaration ends
/// with a semicolon.
#[cfg(not(any(test, feature = "simulation")))]
#[macro_export]
macro_rules! local {
    ($($declared:tt)+) => { ::std::thread_local! { $($declared)+ } };
}

/// Declares values that each thread has for itself, as `thread_local!` does. Each declaration ends
/// with a semicolon.
#[cfg(any(test, feature = "simulation"))]
#[macro_export]
macro_rules! local {
    ($($(#[$attribute:meta])* $seen:vis static $name:ident: $type:ty = $value:expr;)+) => {$(
        $(#[$attribute])*
        $seen static $name: $crate::local::Local<$type> = {
            ::std::thread_local! { static PLAIN: $type = $value; }
            $crate::local::Local::new(&PLAIN, || $value)
        };
    )+};
}

#[cfg(any(test, feature = "simulation"))]
pub use crate::simulation::local::Local;
