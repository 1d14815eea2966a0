//! How much of the processors a thread gets where there are not enough of them.

use rustix::process::setpriority_process;

/// A tenth of the share of others.
const NICE: i32 = 10;

/// The calling thread does what can as well be done later: others come first from now on. For
/// threads that hold locks for moments only, since whoever waits for one waits for the processor as
/// well.
pub fn give_way() {
    // On Linux this is about the calling thread. Where it is refused the thread is as good as any.
    let _ = setpriority_process(None, NICE);
}
