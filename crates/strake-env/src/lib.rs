//! The seam for clock, chance, threads, locks, disk and network. Product code never asks the
//! operating system for these itself, so that tests can simulate all of it. Clocks, disks and
//! sockets are handed in from above; threads, locks and channels are types of this crate.

pub mod answering;
pub mod buffer;
pub mod cause;
pub mod channel;
pub mod clock;
pub mod disk;
pub mod fan_out;
pub mod lent;
pub mod links;
pub mod local;
pub mod lock_waits;
pub mod net;
pub mod process;
pub mod rng;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod stops;
pub mod stream;
pub mod sync;
pub mod thread;
pub mod wait_names;
pub mod watched;
pub mod workers;

pub use buffer::AlignedBuffer;
pub use clock::{Clock, ManualClock, RealClock};
pub use disk::Disk;
pub use disk::file::FileDisk;
pub use disk::sim::SimDisk;
pub use fan_out::FanOut;
pub use lent::LentBuffer;
pub use links::Links;
pub use rng::Rng;
pub use stops::{Stop, Stops};
pub use wait_names::WaitNames;
pub use workers::Workers;
