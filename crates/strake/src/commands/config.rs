//! `strake config`: lists the settings, and shows the values in force.

use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::output;
use crate::registry;
use crate::settings;
use crate::show::InForce;
use clap::Subcommand;
use strake_proto::Result;
use strake_report::Table;

/// List the settings, and show the values in force.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake config list             every setting with its default and meaning
  strake config show             the values that the running file system uses
  strake config show --why       the same, with from what each is derived")]
pub(crate) enum ConfigCommand {
    /// List every setting with its default and meaning.
    List {
        /// Answer in JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the values that the running file system uses.
    Show {
        #[command(flatten)]
        target: Target,
        /// Also say from what each value is derived.
        #[arg(long)]
        why: bool,
    },
}

/// Runs a `strake config` command.
pub(crate) fn run(command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::List { json: true } => {
            let rows: Vec<serde_json::Value> = settings::TABLE
                .iter()
                .map(|setting| {
                    serde_json::json!({
                        "name": setting.name,
                        "default": setting.default,
                        "meaning": setting.meaning,
                    })
                })
                .collect();
            output::print_json(&rows)
        }
        ConfigCommand::List { json: false } => {
            let mut table = Table::listing(&["setting", "default", "meaning"]);
            for setting in settings::TABLE {
                table.row(vec![
                    setting.name.into(),
                    setting.default.into(),
                    setting.meaning.into(),
                ]);
            }
            print!("{}", table.render());
            Ok(())
        }
        ConfigCommand::Show { target, why: true } => why(target),
        ConfigCommand::Show { target, why: false } => {
            let show = target.show()?;
            if target.json {
                return output::print_json(&show.settings);
            }
            show.settings.iter().for_each(|(name, value)| println!("{name} {value}"));
            Ok(())
        }
    }
}

/// Shows the settings in force, and from what each value is derived.
///
/// # Errors
/// The daemon's.
pub(crate) fn why(target: &Target) -> Result<()> {
    let dir = registry::find(target.data.as_deref())?;
    let all: Vec<InForce> = admin::ask(&dir, &Request::Settings)?;
    if target.json {
        return output::print_json(&all);
    }
    print!("{}", InForce::table(&all).render());
    Ok(())
}
