//! The seam for clock, chance, disk and network. Product code never asks the operating system for
//! these itself: it is handed an environment from above, so that tests can simulate all of it.

pub mod buffer;
pub mod clock;
pub mod disk;
pub mod fan_out;
pub mod lent;
pub mod process;
pub mod rng;
pub mod rpc;

pub use buffer::AlignedBuffer;
pub use clock::{Clock, ManualClock, RealClock};
pub use disk::Disk;
pub use disk::file::FileDisk;
pub use disk::sim::SimDisk;
pub use fan_out::FanOut;
pub use lent::LentBuffer;
pub use rng::Rng;
