//! One question to this machine's mount, or with `--all` to the mounts of all nodes.

use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::data_dir::DataDir;
use crate::node::{self, LeaderRequest, NodeDir, OfNode};
use crate::output;
use crate::registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strake_proto::{Error, ErrorKind, Result};

/// Asks the mounts of all nodes. Each answer has the name of its node.
///
/// # Errors
/// `Invalid` outside a cluster; those of this machine's node.
pub(crate) fn ask_all(dir: &DataDir, request: &Request) -> Result<Vec<(String, Result<Value>)>> {
    let config = dir.read_config()?;
    let node = config.node.ok_or_else(|| {
        let detail = "--all: this file system is not of a cluster, so there is one mount only";
        Error::new(ErrorKind::Invalid, detail)
    })?;
    let asked = LeaderRequest::AskMounts { fs: config.name, request: Box::new(request.clone()) };
    let node = NodeDir::at(&node)?;
    let all: Vec<OfNode> = node::ask_own(&node, &node::Request::Leader(asked))?;
    Ok(all.into_iter().map(|of| (of.node, of.answer.into_result())).collect())
}

/// Asks, and prints the answer: of this machine's mount, or of each node's below its name.
///
/// # Errors
/// Those of the daemon. With `all`, those of some nodes after the answers of all others.
pub(crate) fn show<T: DeserializeOwned + Serialize>(
    target: &Target,
    all: bool,
    request: &Request,
    print: &dyn Fn(&T) -> Result<String>,
) -> Result<()> {
    let dir = registry::find(target.data.as_deref())?;
    if !all {
        let answer: T = admin::ask(&dir, request)?;
        if target.json {
            return output::print_json(&answer);
        }
        print!("{}", print(&answer)?);
        return Ok(());
    }
    let answers = ask_all(&dir, request)?;
    if target.json {
        output::print_json(&by_node(&answers))?;
    }
    let (count, mut silent) = (answers.len(), Vec::new());
    for (node, answer) in answers {
        let text = answer.and_then(admin::read_value).and_then(|answer: T| print(&answer));
        let text = text.unwrap_or_else(|error| {
            silent.push(node.clone());
            format!("{error}\n")
        });
        if !target.json {
            print!("{node}:\n{text}\n");
        }
    }
    match silent.is_empty() {
        true => Ok(()),
        false => {
            let detail = format!("{} of {count} nodes gave no answer", silent.join(", "));
            Err(Error::new(ErrorKind::Unreachable, detail))
        }
    }
}

/// An object with the answer of each node, or with why there is none.
fn by_node(answers: &[(String, Result<Value>)]) -> Value {
    let one = |(node, answer): &(String, Result<Value>)| {
        let value = match answer {
            Ok(value) => value.clone(),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        (node.clone(), value)
    };
    Value::Object(answers.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_answer_or_the_reason_for_none() {
        let silent = Err(Error::new(ErrorKind::Unreachable, "node n2 does not answer"));
        let answers = [("n1".to_owned(), Ok(Value::from(7))), ("n2".to_owned(), silent)];
        let told = by_node(&answers);
        assert_eq!(told["n1"], 7);
        let reason = told["n2"]["error"].as_str().expect("a reason");
        assert!(reason.contains("node n2 does not answer"), "{reason}");
    }
}
