//! A terminal without a window: what a program has put on it.

use std::{
    io::{Read as _, Write as _},
    num::NonZero,
    process::Stdio,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use testkit::lab::Host;
use vt100::Parser;

use super::svg;

/// What a program sends when it gives the terminal back.
const GIVEN_BACK: &[u8] = b"\x1b[?1049l";

/// The size of a terminal, in cells.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    pub(super) width: NonZero<u16>,
    pub(super) height: NonZero<u16>,
}

impl Screen {
    /// A picture of what a program of a host shows on the whole terminal after some time: `r` shows its real servers,
    /// and `q` ends it.
    pub(super) fn of_program(self, host: &Host, words: &str, time: Duration) -> Result<String> {
        let Self { width, height } = self;
        let command = format!("stty cols {width} rows {height} && exec {words}");
        let mut terminal = host.command("script");
        terminal.args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"]);
        terminal.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = terminal.spawn().context("starting script")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (mut stdin, mut stdout) = (stdin.context("no input")?, stdout.context("no output")?);
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).map(|_| bytes)
        });
        stdin.write_all(b"r").context("pressing r")?;
        thread::sleep(time);
        stdin.write_all(b"q").context("pressing q")?;
        ensure!(child.wait().context("waiting for script")?.success(), "{words} failed");
        let mut bytes = reader.join().ok().context("reading what it shows panicked")??;
        let end = bytes.windows(GIVEN_BACK.len()).rposition(|part| part == GIVEN_BACK);
        bytes.truncate(end.with_context(|| format!("{words} did not use the whole terminal"))?);
        Ok(self.picture(&bytes))
    }

    /// A picture of a command and what it has printed, on a terminal of this width that is as high as need be.
    pub(super) fn of_text(command: &str, printed: &str, width: NonZero<u16>) -> Result<String> {
        let text = format!("$ {command}\n{}", printed.trim_end());
        let rows = |line: &str| line.chars().count().div_ceil(width.get().into()).max(1);
        let height = NonZero::try_from(u16::try_from(text.lines().map(rows).sum::<usize>())?)?;
        Ok(Self { width, height }.picture(text.replace('\n', "\r\n").as_bytes()))
    }

    fn picture(self, bytes: &[u8]) -> String {
        let mut parser = Parser::new(self.height, self.width, 0);
        parser.process(bytes);
        svg::of(parser.screen())
    }
}
