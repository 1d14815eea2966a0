//! `strake manuals`: writes the man pages and shell completions, for packages.

use super::mount::{MountArgs, UmountArgs};
use crate::Cli;
use clap::CommandFactory;
use clap_complete::aot::{Bash, Fish, Generator, Zsh, generate};
use clap_mangen::Man;
use std::path::{Path, PathBuf};
use strake_proto::Result;

/// Write man pages and shell completions, as a package has them below /usr/share.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  strake manuals /usr/local/share
  man strake-up")]
pub(crate) struct ManualsArgs {
    /// The directory that gets `man`, `bash-completion`, `zsh` and `fish`.
    #[arg(value_name = "DIR")]
    out: PathBuf,
}

/// Writes all files.
///
/// # Errors
/// The host's, with the directory.
pub(crate) fn run(args: &ManualsArgs) -> Result<()> {
    write(args).map_err(|error| error.context(args.out.display()))
}

fn write(args: &ManualsArgs) -> Result<()> {
    let commands = make(&args.out, "man/man1")?;
    clap_mangen::generate_to(Cli::command(), commands)?;
    let helpers = make(&args.out, "man/man8")?;
    for helper in [MountArgs::command(), UmountArgs::command()] {
        Man::new(helper).section("8").generate_to(&helpers)?;
    }
    completions(Bash, &make(&args.out, "bash-completion/completions")?.join("strake"))?;
    completions(Zsh, &make(&args.out, "zsh/site-functions")?.join("_strake"))?;
    completions(Fish, &make(&args.out, "fish/vendor_completions.d")?.join("strake.fish"))
}

fn make(out: &Path, below: &str) -> Result<PathBuf> {
    let path = out.join(below);
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

fn completions(shell: impl Generator, path: &Path) -> Result<()> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "strake", &mut script);
    Ok(std::fs::write(path, script)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_help_lists_has_a_page_with_its_examples() {
        let out = std::env::temp_dir().join(format!("strake-manuals-{}", std::process::id()));
        run(&ManualsArgs { out: out.clone() }).expect("files are written");
        let read = |file: &str| std::fs::read_to_string(out.join(file)).expect("a file");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(
                read(&format!("man/man1/strake-{}.1", command.get_name())).contains(".SH NAME")
            );
        }
        assert!(read("man/man1/strake-fs-create.1").contains("Examples:"));
        assert!(read("man/man8/mount.strake.8").contains("noatime"));
        let scripts = ["bash-completion/completions/strake", "zsh/site-functions/_strake"];
        for script in scripts.into_iter().chain(["fish/vendor_completions.d/strake.fish"]) {
            assert!(read(script).contains("scrub"), "{script}");
        }
        std::fs::remove_dir_all(&out).expect("the test's own directory");
    }
}
