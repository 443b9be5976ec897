//! Runs a program to its end, or ends it.

use std::{
    io::{self, Read},
    process::{Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

/// Why a program has no output.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    /// It took longer than it may, and was killed.
    #[error("it took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    /// It could not be started, or its output not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs a program that reads nothing, and takes what it prints.
pub(super) fn run(command: &mut Command, patience: Duration) -> Result<Output, ChildError> {
    let deadline = Instant::now() + patience;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (in_background(child.stdout.take())?, in_background(child.stderr.take())?);
    // What it has started itself may hold the pipes for longer than it lives: nobody waits for the threads.
    let all_of =
        |output: &Receiver<_>| output.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    match (all_of(&stdout), all_of(&stderr)) {
        (Ok(stdout), Ok(stderr)) => Ok(Output { status: child.wait()?, stdout: stdout?, stderr: stderr? }),
        _ => {
            child.kill()?;
            child.wait()?;
            Err(ChildError::TimedOut(patience))
        }
    }
}

/// Reads to the end.
fn in_background(pipe: Option<impl Read + Send + 'static>) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    thread::Builder::new().spawn(move || {
        let mut all = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut all));
        drop(sender.send(read.map(|_| all)));
    })?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<Output, ChildError> {
        run(Command::new("sh").args(["-c", script]), patience)
    }

    #[test]
    fn what_a_program_prints_is_taken_with_its_exit_code() {
        let output = shell("echo out; echo err >&2; exit 3", Duration::from_secs(20)).unwrap();
        let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!((printed, output.status.code()), (["out\n".to_owned(), "err\n".to_owned()], Some(3)));
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended_and_so_is_one_that_leaves_its_pipes_to_another() {
        for script in ["exec sleep 60", "sleep 60 & exit 0"] {
            let started = Instant::now();
            let outcome = shell(script, Duration::from_millis(100));
            assert!(matches!(outcome, Err(ChildError::TimedOut(_))), "{script}: {outcome:?}");
            assert!(started.elapsed() < Duration::from_secs(30), "{script}");
        }
    }
}
