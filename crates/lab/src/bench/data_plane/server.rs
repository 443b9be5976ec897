//! What answers in the pod, at one port by TCP and UDP.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use anyhow::Result;
use testkit::lab::Host;

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

/// Greets. If the first that comes is a single byte, every byte is sent back; anything longer is a stream, whose end is
/// confirmed.
fn converse(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(b"!")?;
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
