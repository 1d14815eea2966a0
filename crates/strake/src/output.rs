//! Gives results to a person or a program: as text, JSON and exit codes.

use std::process::ExitCode;
use strake_proto::{Error, ErrorKind, Result};

/// Prints a message for the person at the terminal, on stderr. Results go to stdout.
pub(crate) fn tell(message: &dyn std::fmt::Display) {
    eprintln!("strake: {message}");
}

/// Ends a command. The exit code is 0 for success, 2 for wrong usage, 130 after a signal that ended
/// it, and 1 for a failure. An error's message goes to stderr.
pub(crate) fn finish(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The exit code that an error stands for.
pub(crate) fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Invalid => 2,
        ErrorKind::Interrupted => 130,
        _ => 1,
    }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// `Internal` for a value that has no JSON form.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    println!("{text}");
    Ok(())
}
