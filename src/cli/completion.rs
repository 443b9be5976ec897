//! `kube-ipvs completion`.

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use clap_complete::aot::{Generator, Shell};

use super::{
    command,
    output::{print, print_script},
    owners::Owners,
};
use crate::serve::control;

/// For which shell.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Completion {
    /// The shell. To load it: `source <(kube-ipvs completion bash)`, `source <(kube-ipvs completion zsh)` below
    /// `compinit`, `kube-ipvs completion fish | source`
    #[arg(required_unless_present = "services")]
    shell: Option<Shell>,
    /// Print the Services that the daemon knows, which the scripts offer for `explain` and `list`
    #[arg(long, conflicts_with = "shell")]
    services: bool,
    /// Where the daemon's control socket is
    #[arg(long, value_name = "PATH", default_value = control::SOCKET, hide = true)]
    control_socket: PathBuf,
}

/// Prints the script, or what it offers.
pub(super) fn completion(asked: &Completion) -> anyhow::Result<ExitCode> {
    match asked.shell {
        Some(shell) => print_script(&script(shell)?)?,
        None => print(&services(asked))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each Service. A shell that completes is no place for errors.
fn services(asked: &Completion) -> String {
    let owners = Owners::ask(&asked.control_socket).unwrap_or_default();
    let mut lines = String::new();
    for service in owners.services() {
        let _ = writeln!(lines, "{service}");
    }
    lines
}

fn script(shell: Shell) -> anyhow::Result<String> {
    let mut command = command();
    command.set_bin_name("kube-ipvs");
    command.build();
    let mut script = Vec::new();
    shell.try_generate(&command, &mut script)?;
    let script = String::from_utf8(script)?;
    Ok(match shell {
        // clap_complete up to 4.6.11 spells the hyphen in two ways, and no command is completed then:
        // https://github.com/clap-rs/clap/issues/6421. The other scripts have neither.
        Shell::Bash => {
            let script = script.replace("kube__subcmd__ipvs", "kube__ipvs");
            script.replace("complete -F _kube__ipvs ", "complete -F _kube_ipvs ")
                + include_str!("completion/services.bash")
        }
        Shell::Zsh => {
            let offers = |line: &str| line.starts_with("':subject -- ") || line.starts_with("'::filter -- ");
            let line = |line: &str| match offers(line) {
                true => line.replace(":_default'", ":_kube_ipvs_services'") + "\n",
                false => format!("{line}\n"),
            };
            let script: String = script.lines().map(line).collect();
            // The first line says what the file is for, and the last ones call what is above them.
            script.replacen('\n', include_str!("completion/services.zsh"), 1)
        }
        Shell::Fish => script + include_str!("completion/services.fish"),
        _ => script,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write as _},
        os::unix::net::UnixListener,
        thread,
    };

    use ipvs::{Protocol, ServiceAddress};
    use reconciler::VirtualServerOwner;

    use super::*;
    use crate::serve::control::Response;

    fn asked(control_socket: PathBuf) -> Completion {
        Completion { shell: None, services: true, control_socket }
    }

    #[test]
    fn each_service_is_offered_once_and_none_without_a_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        assert_eq!(services(&asked(socket.clone())), "");
        let daemon = UnixListener::bind(&socket).unwrap();
        let owner = |service: &str, port| VirtualServerOwner {
            address: ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port },
            service: service.parse().unwrap(),
            real_servers: 1,
        };
        let owners = vec![owner("shop/web", 80), owner("default/api", 81), owner("shop/web", 82)];
        let answers = thread::spawn(move || {
            let (mut client, _) = daemon.accept().unwrap();
            BufReader::new(&client).read_line(&mut String::new()).unwrap();
            let answer = serde_json::to_string(&Response::Holders(owners)).unwrap();
            client.write_all(format!("{answer}\n").as_bytes()).unwrap();
        });
        assert_eq!(services(&asked(socket)), "default/api\nshop/web\n");
        answers.join().unwrap();
    }
}
