//! `strake plan library` and `strake plan new`: what there is to choose from, and where to begin.

use crate::error::PlanError;
use crate::library::Library;
use std::io::Write as _;
use std::path::PathBuf;

/// A design that evaluates as it stands, with a comment for every field.
const TEMPLATE: &str = include_str!("../template/design.toml");

/// The entries of one kind, or of all, by name with their descriptions.
pub fn list(library: &Library, kind: Option<&str>) -> Result<String, PlanError> {
    let kinds: Vec<&String> = library.entries.keys().collect();
    if let Some(kind) = kind
        && !library.entries.contains_key(kind)
    {
        let known = kinds.into_iter().cloned().collect::<Vec<_>>().join(", ");
        return Err(PlanError::Unknown { kind: "kind of entry", name: kind.into(), known });
    }
    let mut out = String::new();
    for (of, entries) in &library.entries {
        if kind.is_some_and(|kind| kind != of) {
            continue;
        }
        out.push_str(&format!("{of}\n"));
        for (name, entry) in entries {
            let said =
                ["description", "title"].iter().find_map(|field| entry.get(*field)?.as_str());
            out.push_str(&format!("  {name:<20} {}\n", said.unwrap_or_default()));
        }
    }
    out.push_str("strake plan library show NAME prints an entry with its sources.\n");
    Ok(out)
}

/// Every entry of that name, as a library file holds it.
pub fn show(library: &Library, name: &str) -> Result<String, PlanError> {
    let mut out = String::new();
    for (kind, entries) in &library.entries {
        let Some(entry) = entries.get(name) else { continue };
        let text = toml::to_string(entry).map_err(|error| PlanError::Usage(error.to_string()))?;
        out.push_str(&format!("# {kind}\n{text}\n"));
    }
    if out.is_empty() {
        let names = library.entries.values().flat_map(|entries| entries.keys().cloned());
        let known = names.collect::<Vec<_>>().join(", ");
        return Err(PlanError::Unknown { kind: "entry", name: name.into(), known });
    }
    Ok(out)
}

/// Writes the template as `NAME.toml`; never over a file that is there.
pub fn new(name: &str) -> Result<String, PlanError> {
    let path = PathBuf::from(format!("{}.toml", name.trim_end_matches(".toml")));
    let title = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    if title.is_empty() || title.starts_with('.') {
        return Err(PlanError::Usage("give the file a name, for example first".into()));
    }
    if title.contains(['"', '\\', '\n']) {
        return Err(PlanError::Usage("a name has no quotes, backslashes or line ends".into()));
    }
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    let written =
        file.and_then(|mut file| file.write_all(TEMPLATE.replace("NAME", &title).as_bytes()));
    match written {
        Ok(()) => {
            Ok(format!("wrote {0}\nnext: strake plan evaluate {0} --explain\n", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(PlanError::Usage(
            format!("{} is there already; choose another name", path.display()),
        )),
        Err(error) => Err(PlanError::read(&path, error)),
    }
}
