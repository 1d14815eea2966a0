//! `strake plan calibrate --from`: library entries of which measured constants replace the written
//! ones.
//!
//! An entry is copied from one that exists and named `…-measured`. What fio measured on a raw disk
//! goes into the disk, what IOR or `strake bench io` measured through a mount into the server's
//! path, and what mdtest measured into the file system. Every figure that finds no place is named.

use crate::compare::Measurement;
use crate::error::PlanError;
use crate::library::Library;
use crate::outputs::{Did, Row, Unused};
use crate::stage::Metric;
use crate::unit::{KIB, MIB};
use toml::{Table, Value};

/// Which entries the measured ones are like.
#[derive(Clone, Debug, Default)]
pub struct Like {
    pub disk: Option<String>,
    pub server: Option<String>,
    pub filesystem: Option<String>,
}

/// Streams of smaller records say little about a disk's rate.
const STREAM_RECORD_MIN: f64 = 128.0 * KIB;

/// The text of a library file, and what was not used.
pub fn adopt(
    library: &Library,
    like: &Like,
    files: &[(String, Vec<Row>)],
) -> Result<(String, Vec<Unused>), PlanError> {
    let mut disk = Entry::like(library, "disk", like.disk.as_deref())?;
    let mut server = Entry::like(library, "server", like.server.as_deref())?;
    let mut filesystem = Entry::like(library, "filesystem", like.filesystem.as_deref())?;
    let mut unused = Vec::new();
    for (file, rows) in files {
        for row in rows {
            let said = format!("measured: {file}, {}", row.name);
            let of_disk = row.name.starts_with("fio ");
            let (entry, kind) = match row.did {
                Did::Create | Did::Names => (&mut filesystem, "--filesystem"),
                _ if of_disk => (&mut disk, "--disk"),
                _ => (&mut server, "--server"),
            };
            match (fields(row, of_disk), entry) {
                (Err(why), _) => unused.push(Unused::new(&row.name, why)),
                (Ok(_), None) => unused.push(Unused::new(
                    &row.name,
                    format!("say with {kind} NAME which entry of the library it is like"),
                )),
                (Ok(fields), Some(entry)) => {
                    for (field, value) in fields {
                        entry.set(field, value, &said);
                    }
                }
            }
        }
    }
    let mut out = String::from(
        "# Measured constants by `strake plan calibrate --from`; give the directory of this file to\n\
         # `strake plan --library DIR …`.\n\n[[source]]\nkey = \"measured\"\n\
         title = \"Outputs of benchmarks given to strake plan calibrate --from\"\n",
    );
    for entry in [disk, server, filesystem].into_iter().flatten() {
        let text = toml::to_string(&entry.table);
        let text = text.map_err(|error| PlanError::Usage(error.to_string()))?;
        out.push_str(&format!(
            "\n[[{}]]\n{}",
            entry.kind,
            text.replace("\n[", &format!("\n[{}.", entry.kind))
        ));
    }
    Ok((out, unused))
}

struct Entry {
    kind: &'static str,
    table: Table,
}

impl Entry {
    fn like(
        library: &Library,
        kind: &'static str,
        name: Option<&str>,
    ) -> Result<Option<Entry>, PlanError> {
        let Some(name) = name else { return Ok(None) };
        let of_kind = library.entries.get(kind);
        let entry = of_kind.and_then(|entries| entries.get(name)).and_then(Value::as_table);
        let Some(table) = entry else {
            let names = of_kind.into_iter().flat_map(|entries| entries.keys().cloned());
            let known = names.collect::<Vec<_>>().join(", ");
            return Err(PlanError::Unknown { kind, name: name.into(), known });
        };
        let mut table = table.clone();
        table.insert("name".into(), Value::String(format!("{name}-measured")));
        Ok(Some(Entry { kind, table }))
    }

    fn set(&mut self, field: &str, value: Value, source: &str) {
        let mut constant = Table::new();
        constant.insert("value".into(), value);
        constant.insert("source".into(), Value::String(source.to_string()));
        self.table.insert(field.to_string(), Value::Table(constant));
    }
}

/// The fields that a row gives.
fn fields(row: &Row, of_disk: bool) -> Result<Vec<(&'static str, Value)>, String> {
    let rate = |bytes: f64| Value::String(format!("{:.1}MB/s", bytes / MIB));
    let each = row.value / row.hosts as f64;
    let small = row.record == 4.0 * KIB;
    let alone = row.depth == Some(1);
    match row.did {
        Did::Create => Ok(vec![("names", Value::Float(row.value))]),
        Did::Names => Err("only file creation stands for operations on names".into()),
        Did::Write | Did::Read if of_disk && row.record < STREAM_RECORD_MIN => {
            Err("streams of records below 128 KiB say little about a disk's rate".into())
        }
        Did::Write if of_disk => Ok(vec![("stream_write", rate(row.value))]),
        Did::Read if of_disk => Ok(vec![("stream_read", rate(row.value))]),
        Did::Write => Ok(vec![("path_write", rate(each))]),
        Did::Read => Ok(vec![("path_read", rate(each))]),
        _ if !of_disk => Err("random transfers through a mount are no constant of a server".into()),
        Did::RandomRead if row.record == 2.0 * MIB => {
            Ok(vec![("random_2m", rate(row.value * row.record))])
        }
        Did::RandomRead | Did::RandomWrite if small => {
            let writes = row.did == Did::RandomWrite;
            let (iops, latency) = match writes {
                true => ("iops_write", "latency_write"),
                false => ("iops_read", "latency_read"),
            };
            match row.latency.filter(|_| alone) {
                // One at a time gives the time of one, not what the disk can do.
                Some(seconds) => Ok(vec![(latency, Value::Float(seconds))]),
                None => Ok(vec![(iops, Value::Float(row.value))]),
            }
        }
        _ => Err("random transfers of a disk are used at 4 KiB, and reads at 2 MiB".into()),
    }
}

/// Rows of `strake bench` in the same form.
pub fn of_bench(measurements: &[Measurement]) -> Vec<Row> {
    let row = |m: &Measurement| {
        let did = match m.metric {
            Metric::Write => Did::Write,
            Metric::Read => Did::Read,
            Metric::IopsWrite => Did::RandomWrite,
            Metric::IopsRead => Did::RandomRead,
        };
        let (hosts, tasks, record) = (m.hosts, m.tasks_per_host, m.record);
        Row {
            name: m.name.clone(),
            did,
            value: m.value,
            hosts,
            tasks,
            record,
            latency: None,
            depth: None,
        }
    };
    measurements.iter().filter(|m| m.network_servers.is_none()).map(row).collect()
}

#[cfg(test)]
#[path = "adopt_test.rs"]
mod adopt_test;
