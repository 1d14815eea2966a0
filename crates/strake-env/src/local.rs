//! Values that each thread has for itself ([`local!`](crate::local)).
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
pub use simulated::Local;

#[cfg(any(test, feature = "simulation"))]
mod simulated {
    use crate::simulation::stacks;
    use std::cell::Cell;
    use std::thread::{AccessError, LocalKey};

    /// A value that each thread has for itself, simulated or not.
    pub struct Local<T: 'static> {
        plain: &'static LocalKey<T>,
        first: fn() -> T,
    }

    impl<T: 'static> Local<T> {
        /// `first` makes the first value of a simulated thread.
        pub const fn new(plain: &'static LocalKey<T>, first: fn() -> T) -> Local<T> {
            Local { plain, first }
        }

        /// As [`LocalKey::with`].
        pub fn with<R>(&'static self, work: impl FnOnce(&T) -> R) -> R {
            match self.own() {
                Some(own) => work(&own),
                None => self.plain.with(work),
            }
        }

        /// As [`LocalKey::try_with`].
        ///
        /// # Errors
        /// If this thread ends and has no value any more.
        pub fn try_with<R>(&'static self, work: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
            match self.own() {
                Some(own) => Ok(work(&own)),
                None => self.plain.try_with(work),
            }
        }

        fn own(&'static self) -> Option<std::rc::Rc<T>> {
            stacks::own_value(std::ptr::from_ref(self) as usize, self.first)
        }
    }

    impl<T: 'static> Local<Cell<T>> {
        /// As [`Cell::get`].
        pub fn get(&'static self) -> T
        where
            T: Copy,
        {
            self.with(Cell::get)
        }

        /// As [`Cell::set`].
        pub fn set(&'static self, value: T) {
            self.with(|cell| cell.set(value));
        }

        /// As [`Cell::replace`].
        pub fn replace(&'static self, value: T) -> T {
            self.with(|cell| cell.replace(value))
        }
    }
}
