//! Runs a program within bounds: one that hangs in the kernel or prints without an end is killed.

use std::{
    io::{self, Read, Write as _},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

/// The limits of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long it may run.
    pub time: Duration,
    /// How many bytes it may print, to standard output and as many to standard error.
    pub output: u64,
}

/// Why a program gave no output.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It took longer than it may, and was killed.
    #[error("it took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    /// It printed more bytes than it may, and was killed.
    #[error("it printed more than {} MiB", .0 >> 20)]
    TooLong(u64),
    /// It could not be started, or its output not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How long a killed program may take to end. One that hangs in the kernel is left behind.
const LAST: Duration = Duration::from_secs(1);
/// How often its status is polled: as a rule it ends as soon as its output ends.
const POLL: Duration = Duration::from_millis(5);

/// Runs a program with this input, and returns its output.
pub fn run(command: &mut Command, input: &[u8], bounds: Bounds) -> Result<Output, Error> {
    let deadline = Instant::now() + bounds.time;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let output = communicate(&mut child, input.to_vec(), bounds, deadline);
    if output.is_err() {
        child.kill()?;
        ended(&mut child, Instant::now() + LAST)?;
    }
    output
}

fn communicate(
    child: &mut Child,
    input: Vec<u8>,
    Bounds { time, output }: Bounds,
    deadline: Instant,
) -> Result<Output, Error> {
    // Programs that it has started may keep the pipes open after its end: the threads are not waited for.
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it has read everything prints the reason itself.
        thread::Builder::new().spawn(move || drop(stdin.write_all(&input)))?;
    }
    let (stdout, stderr) = (read(child.stdout.take(), output)?, read(child.stderr.take(), output)?);
    let all_of = |printed: &Receiver<_>| {
        let left = deadline.saturating_duration_since(Instant::now());
        printed.recv_timeout(left).unwrap_or(Err(Error::TimedOut(time)))
    };
    let (stdout, stderr) = (all_of(&stdout)?, all_of(&stderr)?);
    let status = ended(child, deadline)?.ok_or(Error::TimedOut(time))?;
    Ok(Output { status, stdout, stderr })
}

/// Reads to the end, but not more than this many bytes.
fn read(pipe: Option<impl Read + Send + 'static>, most: u64) -> io::Result<Receiver<Result<Vec<u8>, Error>>> {
    let (sender, receiver) = channel();
    thread::Builder::new().spawn(move || {
        let mut all = Vec::new();
        let read = pipe.map_or(Ok(0), |pipe| pipe.take(most.saturating_add(1)).read_to_end(&mut all));
        let is_too_long = u64::try_from(all.len()).is_ok_and(|length| length > most);
        drop(sender.send(match read {
            Ok(_) if is_too_long => Err(Error::TooLong(most)),
            Ok(_) => Ok(all),
            Err(error) => Err(error.into()),
        }));
    })?;
    Ok(receiver)
}

/// The status of the program, if it ends by this time.
fn ended(child: &mut Child, by: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= by {
            return Ok(status);
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { time: Duration::from_secs(20), output: 1 << 20 };

    fn shell(script: &str, input: &[u8], bounds: Bounds) -> Result<Output, Error> {
        run(Command::new("sh").args(["-c", script]), input, bounds)
    }

    #[test]
    fn what_a_program_prints_is_taken_with_its_exit_code() {
        let output = shell("cat; echo err >&2; exit 3", b"out\n", BOUNDS).unwrap();
        let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!((printed, output.status.code()), (["out\n".to_owned(), "err\n".to_owned()], Some(3)));
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended_in_whatever_way_it_does() {
        let bounds = Bounds { time: Duration::from_millis(100), ..BOUNDS };
        let more_than_a_pipe_holds = vec![b' '; 1 << 20];
        for script in ["exec sleep 60", "sleep 60 & exit 0", "exec >&- 2>&-; exec sleep 60"] {
            let started = Instant::now();
            let outcome = shell(script, &more_than_a_pipe_holds, bounds);
            assert!(matches!(outcome, Err(Error::TimedOut(_))), "{script}: {outcome:?}");
            assert!(started.elapsed() < Duration::from_secs(30), "{script}");
        }
    }

    #[test]
    fn a_program_that_prints_without_an_end_is_ended() {
        for script in ["exec yes", "exec yes >&2"] {
            let error = shell(script, b"", BOUNDS).unwrap_err();
            assert_eq!(error.to_string(), "it printed more than 1 MiB", "{script}");
        }
    }
}
