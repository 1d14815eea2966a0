//! A *peer* is this program again, with one file of one mount. It does what it is told on its
//! standard input, a line at a time, and answers with a line. So nothing depends on time.

use crate::Outcome;
use crate::world::World;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process with a file of its own. Dropped, it is killed.
pub(crate) struct Peer {
    pub(crate) child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(
        role: &str,
        world: &World,
        mount: usize,
        name: &str,
    ) -> Result<Peer, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).arg(world.path(mount, name));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("no pipe")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Peer { child, orders, answers })
    }

    pub(crate) fn tell(&mut self, order: &str) -> Outcome {
        writeln!(self.orders, "{order}")?;
        Ok(())
    }

    pub(crate) fn answer(&mut self) -> Result<String, std::io::Error> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }

    pub(crate) fn hear(&mut self, wanted: &str, what: &str) -> Outcome {
        let answer = self.answer()?;
        match answer == wanted {
            true => Ok(()),
            false => Err(format!("{what}: it answers {answer}, not {wanted}").into()),
        }
    }

    pub(crate) fn ask(&mut self, order: &str, wanted: &str) -> Outcome {
        self.tell(order)?;
        self.hear(wanted, order)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
