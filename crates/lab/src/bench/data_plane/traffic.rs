//! Both ends of the traffic: what asks, and counts the processor's time for it, and what answers in the pod.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use testkit::lab::Host;

use super::{processor_clock::ProcessorClock, way::Traffic};

/// A datagram that is lost is a failure.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many datagrams are answered together: as many as surely have room in a socket.
const TOGETHER: u32 = 16;
const MEGABYTE: usize = 1 << 20;

/// Sends so much in this thread's namespace, after a little that is not counted. Returns the seconds of the processor
/// for each operation.
pub(super) fn run(traffic: Traffic, to: SocketAddr, operations: u32, clock: &ProcessorClock) -> Result<f64> {
    let before = operations.div_ceil(10);
    match traffic {
        Traffic::Connections => counted(clock, [before, operations], |_| ask(&mut connect(to)?)),
        Traffic::Requests => {
            let mut stream = connect(to)?;
            counted(clock, [before, operations], |_| ask(&mut stream))
        }
        Traffic::Datagrams => {
            let socket = socket(to)?;
            counted(clock, [TOGETHER, operations.next_multiple_of(TOGETHER)], |number| {
                let is_last = number % TOGETHER == TOGETHER - 1;
                socket.send(&[if is_last { LAST } else { 0 }])?;
                if is_last {
                    socket.recv(&mut [0; 16]).context("the answer to datagrams")?;
                }
                Ok(())
            })
        }
        Traffic::Stream => {
            send(connect(to)?, before)?;
            let stream = connect(to)?;
            let begun = clock.now()?;
            send(stream, operations)?;
            Ok((clock.now()? - begun) / f64::from(operations))
        }
    }
}

/// Sends a byte, and waits until it comes back.
fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"?")?;
    Ok(stream.read_exact(&mut [0])?)
}

/// Sends so many megabytes, and waits until all have been received.
fn send(mut stream: TcpStream, megabytes: u32) -> Result<()> {
    let piece = vec![0; MEGABYTE];
    for _ in 0..megabytes {
        stream.write_all(&piece)?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut [0]).context("the end of the stream")
}

/// Asks by TCP and by UDP, and does not wait for ever.
pub(super) fn try_out(to: SocketAddr) -> Result<()> {
    to_be_broken_off(&TcpStream::connect_timeout(&to, PATIENCE)?);
    let socket = socket(to)?;
    socket.send(&[LAST])?;
    socket.recv(&mut [0; 16])?;
    Ok(())
}

/// Does something so many times before, and so many times while the clock is looked at.
fn counted(
    clock: &ProcessorClock,
    [before, times]: [u32; 2],
    mut operation: impl FnMut(u32) -> Result<()>,
) -> Result<f64> {
    for number in 0..before {
        operation(number)?;
    }
    let begun = clock.now()?;
    for number in 0..times {
        operation(number)?;
    }
    Ok((clock.now()? - begun) / f64::from(times))
}

/// Opens a connection, which dropping it breaks off.
fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    to_be_broken_off(&stream);
    Ok(stream)
}

/// Makes the end of a connection an RST, after which no end waits for late packets: IPVS and conntrack forget the
/// connection in ten seconds.
fn to_be_broken_off(stream: &TcpStream) {
    // Otherwise it ends by FIN, which costs a little more.
    let _ = setsockopt(stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 });
}

fn socket(to: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    Ok(socket)
}

/// Where it listens.
pub(super) const PORT: u16 = 9090;
/// The last of the datagrams that are answered together.
pub(super) const LAST: u8 = 1;

/// Serves until the process ends, in both families.
pub(super) fn start(pod: &Host) -> Result<()> {
    for ip in [IpAddr::from(pod.ipv4), IpAddr::from(pod.ipv6)] {
        let at = SocketAddr::new(ip, PORT);
        let (listener, datagrams) =
            pod.inside(move || anyhow::Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)))??;
        pod.spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that breaks off is not a failure.
                drop(converse(stream));
            }
        })?;
        pod.spawn(move || answer(&datagrams))?;
    }
    Ok(())
}

/// If the first that comes is a single byte, every byte is sent back; anything longer is a stream, whose end is
/// confirmed.
fn converse(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 << 10];
    let mut read = stream.read(&mut buffer)?;
    let is_stream = read > 1;
    while read > 0 {
        if !is_stream {
            stream.write_all(buffer.get(..read).unwrap_or_default())?;
        }
        read = stream.read(&mut buffer)?;
    }
    if is_stream {
        stream.write_all(b"!")?;
    }
    Ok(())
}

fn answer(socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 16];
    loop {
        let (_, from) = socket.recv_from(&mut buffer)?;
        if buffer.first() == Some(&LAST) {
            socket.send_to(b"!", from)?;
        }
    }
}
