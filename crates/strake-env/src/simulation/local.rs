//! A value that each thread has for itself, simulated or not; see [`local!`](crate::local!).

use super::stacks;
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
