//! Operations ask for tokens so that a directory that several clients change is handed over rarely.

use super::wants::{merged, want};
use super::{Access, Tokens};
use strake_proto::{Ino, Result};
use strake_token::Mode;
use strake_token::held::Want;

impl Tokens {
    /// A name in a directory is being changed. The caller holds its token.
    pub(crate) fn changes_names(&self, directory: Ino) {
        self.state.lock().lingering.changed(directory, self.clock.monotonic());
    }

    /// The token with which an inode is looked at. A directory in which this client changes names,
    /// and which others have taken, is soon wanted exclusively, so that it is asked for only once.
    pub(crate) fn to_look(&self, ino: Ino) -> Want {
        let state = self.state.lock();
        let is_gone = state.holder.usable(ino).inode.is_none();
        let changes = is_gone && state.lingering.is_changing(ino, self.clock.monotonic());
        want(ino, if changes { Mode::Exclusive } else { Mode::Shared })
    }

    /// Has those tokens of an operation granted that this client lacks, if it has others of them.
    /// A request for all of them would have to wait until those that it has are given up, if
    /// another client wants one of these: a directory in quick use would be given up at each
    /// removal of a file that others have looked at. Nothing is kept for the operation meanwhile,
    /// which takes all its tokens at once after that.
    pub(super) fn fetch_missing(&self, wants: &[Want], access: Access) -> Result<()> {
        if wants.len() < 2 {
            return Ok(());
        }
        let wants = merged(wants);
        let mut missing = wants.clone();
        {
            let state = self.state.lock();
            missing.retain(|want| !state.holder.usable(want.ino).covers(want));
        }
        if !missing.is_empty() && missing.len() < wants.len() {
            drop(self.take_now(&missing, access)?);
        }
        Ok(())
    }
}
