//! XFS in a file of the session's directory, through a loop device. It serves as the file system
//! that Strake is compared with, as a host small enough to fill up, and as a host that fails.

use super::checks::Checks;
use super::command::pause;
use super::session::Session;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TOOL_SECONDS_MAX: u64 = 60;

/// A mounted XFS. When it is dropped, it is unmounted, which frees its loop device.
pub(crate) struct Xfs<'a> {
    session: &'a Session,
    suite: &'static str,
    pub(crate) mount: PathBuf,
    image: PathBuf,
}

impl<'a> Xfs<'a> {
    /// Makes an XFS of `bytes` in a sparse file and mounts it.
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
        let xfs = Xfs { session, suite: checks.suite(), mount, image };
        xfs.tool("mkfs.xfs", &["-q"], &[&xfs.image])?;
        xfs.tool("mount", &["-o", "loop"], &[&xfs.image, &xfs.mount])?;
        Ok(xfs)
    }

    /// Makes every change to the file system wait in the kernel until [`Xfs::thaw`].
    ///
    /// # Errors
    /// What the tool said.
    pub(crate) fn freeze(&self) -> Result<(), String> {
        self.tool("fsfreeze", &["--freeze"], &[&self.mount])
    }

    /// Ends a [`Xfs::freeze`].
    ///
    /// # Errors
    /// What the tool said, for example that it was not frozen.
    pub(crate) fn thaw(&self) -> Result<(), String> {
        self.tool("fsfreeze", &["--unfreeze"], &[&self.mount])
    }

    /// Makes every access fail with EIO until [`Xfs::mount_anew`].
    ///
    /// # Errors
    /// What the tool said.
    pub(crate) fn shut_down(&self) -> Result<(), String> {
        self.tool("xfs_io", &["-x", "-c", "shutdown -f"], &[&self.mount])
    }

    /// Unmounts the file system once its users have let it go, and mounts it again.
    ///
    /// # Errors
    /// What the tools said, or that it is still in use after `seconds`.
    pub(crate) fn mount_anew(&self, seconds: u64) -> Result<(), String> {
        let end = crate::runner::now() + Duration::from_secs(seconds);
        while let Err(error) = self.tool("umount", &[], &[&self.mount]) {
            if crate::runner::now() >= end {
                return Err(format!("not let go within {seconds} s: {error}"));
            }
            pause(Duration::from_millis(100));
        }
        self.tool("mount", &["-o", "loop"], &[&self.image, &self.mount])
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
