use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
};

use super::{
    super::{
        super::syn_recv::SynRecv,
        tests::made_up::{server, vip},
    },
    *,
};
use crate::serve::control::encode_answer;

/// One virtual server, whose name is not known yet.
fn sample() -> Sample {
    let servers = vec![server(vip(10, 80), 0, &[])];
    Sample { at: Instant::now(), servers, syn_recv: SynRecv::default() }
}

fn web() -> VirtualServerOwner {
    VirtualServerOwner { address: vip(10, 80), service: "default/web".parse().unwrap(), real_servers: 1 }
}

/// Reads one question, and answers it.
fn answer(daemon: &UnixListener, owners: Vec<VirtualServerOwner>) {
    let (mut client, _) = daemon.accept().unwrap();
    BufReader::new(&client).read_line(&mut String::new()).unwrap();
    client.write_all(&encode_answer("holders", Ok(owners)).unwrap()).unwrap();
}

#[test]
fn a_daemon_that_hangs_delays_no_screen_and_is_asked_again_only_later() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let hangs = UnixListener::bind(&socket).unwrap();
    let mut names = Names::from(Client::new(&socket));
    let begin = Instant::now();
    names.refresh(&sample(), begin);
    names.refresh(&sample(), begin + MIN_INTERVAL);
    assert!(begin.elapsed() < Duration::from_secs(1), "it was waited for: {:?}", begin.elapsed());
    assert_eq!(names.doubt(begin), None, "it may still answer");

    names.wait();
    let doubt = names.doubt(Instant::now()).unwrap();
    assert!(doubt.starts_with("showing addresses instead of Services: "), "{doubt}");
    assert!(doubt.ends_with(" does not answer within 2 s"), "{doubt}");
    hangs.set_nonblocking(true).unwrap();
    assert!(hangs.accept().is_ok() && hangs.accept().is_err(), "it was asked once");
    names.refresh(&sample(), Instant::now());
    assert!(names.answer.is_none(), "and not at once again");
    names.refresh(&sample(), Instant::now() + MIN_INTERVAL);
    assert!(names.answer.is_some());
}

#[test]
fn names_stay_when_the_daemon_has_gone_and_how_old_they_are_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let daemon = UnixListener::bind(&socket).unwrap();
    let mut names = Names::from(Client::new(&socket));
    names.refresh(&sample(), Instant::now());
    answer(&daemon, vec![web()]);
    names.wait();
    assert_eq!((names.owner(vip(10, 80).into()), names.doubt(Instant::now())), (Some(&web().service), None));

    drop(daemon);
    let learnt = names.learnt.unwrap();
    names.refresh(&sample(), learnt + MAX_AGE);
    names.wait();
    assert_eq!(names.owner(vip(10, 80).into()), Some(&web().service));
    let doubt = names.doubt(learnt + Duration::from_secs(62)).unwrap();
    assert!(doubt.starts_with("names as of 62 s ago: no daemon answers at "), "{doubt}");
}
