//! The shell script that starts the command inside a guest.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::Path,
};

/// A `sh` script that sets the environment, goes to `directory` if the guest has it, and turns
/// into `command`.
pub(crate) fn command(
    environment: &[(OsString, OsString)],
    directory: &Path,
    command: &[OsString],
) -> OsString {
    let mut script = OsString::new();
    for (name, value) in environment {
        script.push("export ");
        script.push(name);
        script.push("=");
        script.push(quoted(value));
        script.push("\n");
    }
    script.push("cd ");
    script.push(quoted(directory.as_os_str()));
    script.push(" 2>/dev/null || cd /\nexec");
    for word in command {
        script.push(" ");
        script.push(quoted(word));
    }
    script.push("\n");
    script
}

/// `word` in single quotes, so that the shell takes it as it is.
pub fn quoted(word: &OsStr) -> OsString {
    let mut out = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => out.extend_from_slice(br"'\''"),
            byte => out.push(byte),
        }
    }
    out.push(b'\'');
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_gives_every_word_and_variable_back_unchanged() {
        let odd = "it's $HOME `id` \"q\" \\ *\nsecond line";
        let script = command(
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
