//! Starts the command inside a guest by a shell script, and passes its output and the console's end on.

use std::{
    ffi::{OsStr, OsString},
    fmt::{self, Display},
    fs,
    fs::File,
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, ExitStatus},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::Context as _;

use crate::{Guest, TIMED_OUT};

/// Sees what a command writes to stdout.
pub type Tap<'a> = &'a (dyn Fn(&[u8]) + Sync);

/// Relays the child's piped stdout and stderr until it has ended; its exit code.
pub(crate) fn until_exit(mut child: Child, tap: Tap<'_>) -> anyhow::Result<u8> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| stdout.map(|from| copy(from, io::stdout(), tap)));
        scope.spawn(|| stderr.map(|from| copy(from, io::stderr(), &|_| {})));
    });
    let status = child.wait().context("waiting for the command")?;
    Ok(exit_code(status))
}

/// Relays what the child writes to two files, which exist, until it has ended.
pub(crate) fn files_until_exit(
    mut child: Child,
    stdout: &Path,
    stderr: &Path,
    tap: Tap<'_>,
) -> anyhow::Result<ExitStatus> {
    let open = |path: &Path| File::open(path).with_context(|| format!("opening {}", path.display()));
    let (mut stdout, mut stderr) = (open(stdout)?, open(stderr)?);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let followers = scope.spawn(|| {
            loop {
                // Asked before reading: what was written until the end is then read below.
                let last = ended.load(Ordering::Acquire);
                copy(&mut stdout, io::stdout(), tap);
                copy(&mut stderr, io::stderr(), &|_| {});
                if last {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let status = child.wait().context("waiting for the command");
        ended.store(true, Ordering::Release);
        drop(followers);
        status
    })
}

/// As a shell has it: a command killed by a signal ends with 128 plus its number.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Copies what is available. A reader that has gone must not stop the guest.
fn copy(mut from: impl Read, mut to: impl Write, tap: Tap<'_>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let Some(piece) = buffer.get(..read) else { break };
        tap(piece);
        drop(to.write_all(piece).and_then(|()| to.flush()));
    }
}

/// How many of its last lines are printed, and how many an error repeats: of a long run only the end may be kept.
const PRINTED: usize = 40;
const IN_AN_ERROR: usize = 8;

/// A guest has ended by itself before its command did.
#[derive(Debug)]
pub struct EndedEarly {
    how: String,
    last: String,
}

impl Display for EndedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { how, last } = self;
        write!(f, "the guest ended before the command did ({how}); its console ended with: {last}")
    }
}

impl std::error::Error for EndedEarly {}

/// What becomes of a guest that has ended, in this way, before its command did: the end of its console is printed to
/// stderr. The exit code, if it was stopped for its time.
pub(crate) fn conclude(
    console: &Path,
    guest: &Guest,
    has_timed_out: bool,
    how: impl Display,
) -> Result<u8, EndedEarly> {
    // It is missing where the guest has not begun.
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = |count| lines.iter().skip(lines.len().saturating_sub(count)).copied();
    for line in last(PRINTED) {
        eprintln!("console: {line}");
    }
    if has_timed_out {
        eprintln!("xtask: the guest was stopped after {} s", guest.timeout.as_secs());
        return Ok(TIMED_OUT);
    }
    Err(EndedEarly { how: how.to_string(), last: last(IN_AN_ERROR).collect::<Vec<_>>().join(" | ") })
}

/// A `sh` script that sets the environment, goes to `directory` if the guest has it, and turns into `command`.
pub(crate) fn script_for(
    environment: &[(OsString, OsString)],
    directory: &Path,
    command: &[OsString],
) -> String {
    let set = |(name, value): &(OsString, OsString)| format!("export {}={}\n", name.display(), quoted(value));
    let environment: Vec<String> = environment.iter().map(set).collect();
    let words: Vec<String> = command.iter().map(quoted).collect();
    let directory = quoted(directory);
    format!("{}cd {directory} 2>/dev/null || cd /\nexec {}\n", environment.concat(), words.join(" "))
}

/// `word` in single quotes, so that the shell takes it as it is.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    format!("'{}'", word.as_ref().to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_gives_every_word_and_variable_back_unchanged() {
        let odd = "it's $HOME `id` \"q\" \\ *\nsecond line";
        let script = script_for(
            &[("KUBE_IPVS_ODD".into(), odd.into())],
            Path::new("/no such directory"),
            &[
                "sh".into(),
                "-c".into(),
                r#"printf '%s|%s' "$1" "$KUBE_IPVS_ODD""#.into(),
                "sh".into(),
                odd.into(),
            ],
        );
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{odd}|{odd}"));
    }
}
