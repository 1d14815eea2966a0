//! XFS in a file of the session's directory, through a loop device: what Strake is compared with,
//! and a host file system small enough to run full.

use super::checks::Checks;
use super::session::Session;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOL_SECONDS_MAX: u64 = 60;

/// A mounted XFS; dropped, it is unmounted, which frees its loop device.
pub(crate) struct Xfs<'a> {
    session: &'a Session,
    suite: &'static str,
    pub(crate) mount: PathBuf,
}

impl<'a> Xfs<'a> {
    /// Makes one of `bytes` (sparse) and mounts it.
    ///
    /// # Errors
    /// What the tools said.
    pub(crate) fn mount(
        session: &'a Session,
        checks: &Checks,
        name: &str,
        bytes: u64,
    ) -> Result<Xfs<'a>, String> {
        let directory = session.root.join(name);
        let (image, mount) = (directory.join("image"), directory.join("mnt"));
        let text = |error: std::io::Error| format!("{}: {error}", directory.display());
        std::fs::create_dir_all(&mount).map_err(text)?;
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).map_err(text)?;
        let xfs = Xfs { session, suite: checks.suite(), mount };
        xfs.tool("mkfs.xfs", &["-q"], &[&image])?;
        xfs.tool("mount", &["-o", "loop"], &[&image, &xfs.mount])?;
        Ok(xfs)
    }

    fn tool(&self, program: &str, words: &[&str], paths: &[&Path]) -> Result<(), String> {
        let mut command: Command = self.session.command(program);
        command.args(words).args(paths);
        self.session.run(self.suite, program, TOOL_SECONDS_MAX, &mut command).map(drop)
    }
}

impl Drop for Xfs<'_> {
    fn drop(&mut self) {
        // If this fails, the janitor detaches it.
        let _ = self.tool("umount", &[], &[&self.mount]);
    }
}
