//! When all replicas of the metadata have applied the same entries, their stores hold the same
//! records (R32).

use crate::cluster::node::Node;
use std::sync::Arc;
use strake_store::KvRead;

/// Whether all replicas run and have applied the last entry.
pub(crate) fn are_level(nodes: &[Arc<Node>]) -> bool {
    let replicas = nodes.iter().filter_map(|node| node.metadata().replica());
    let statuses: Vec<_> = replicas.map(|replica| replica.status()).collect();
    let last = statuses.iter().map(|status| status.last.position).max();
    statuses.len() == nodes.len() && statuses.iter().all(|status| Some(status.applied) == last)
}

/// Compares the stores of level replicas.
///
/// # Errors
/// The first record that differs.
pub(crate) fn check(nodes: &[Arc<Node>]) -> Result<(), String> {
    let stores: Vec<_> = nodes.iter().map(records).collect();
    for (at, pair) in stores.windows(2).enumerate() {
        let differs = pair[0].iter().zip(&pair[1]).find(|(one, other)| one != other);
        if let Some((one, other)) = differs {
            return Err(format!("replicas {} and {}: {one:x?}, {other:x?}", at + 1, at + 2));
        }
        if pair[0].len() != pair[1].len() {
            let (one, other) = (pair[0].len(), pair[1].len());
            return Err(format!("replicas {} and {}: {one} and {other} records", at + 1, at + 2));
        }
    }
    Ok(())
}

fn records(node: &Arc<Node>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = Vec::new();
    let replicated = node.metadata().replicated().expect("it runs");
    let mut visit = |key: &[u8], value: &[u8]| {
        records.push((key.to_vec(), value.to_vec()));
        true
    };
    replicated.store().scan(&[], &[0xff], &mut visit).expect("its disk is sound");
    records
}
