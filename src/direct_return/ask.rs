//! Asking another node whether it unpacks what is sent to its pods.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use http::{Request, header::HOST};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tracing::debug;

use crate::serve::health::DirectReturnAnswer;

/// How long a node may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an answer may be, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024;

/// How many nodes are asked at a time.
const AT_A_TIME: usize = 32;

/// What those of these nodes have answered that have, and have decided.
pub(super) async fn ask_each(
    mut peers: impl Iterator<Item = (&Arc<str>, &Vec<IpAddr>)>,
    port: u16,
) -> BTreeMap<Arc<str>, DirectReturnAnswer> {
    let mut answers = BTreeMap::new();
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < AT_A_TIME
            && let Some((name, ips)) = peers.next()
        {
            let (name, ips) = (name.clone(), ips.clone());
            asked.spawn(async move { (name, ask(&ips, port).await) });
        }
        match asked.join_next().await {
            Some(Ok((name, Some(answer)))) if answer.unpacks.is_some() => _ = answers.insert(name, answer),
            Some(_) => {}
            None => return answers,
        }
    }
}

/// What a node with these addresses answers; `None`, if nobody does.
async fn ask(ips: &[IpAddr], port: u16) -> Option<DirectReturnAnswer> {
    for ip in ips {
        match timeout(PATIENCE, get(*ip, port)).await {
            Ok(Ok(body)) => return Some(DirectReturnAnswer::read(&body)),
            Ok(Err(error)) => debug!("{ip} port {port} does not answer: {error:#}"),
            Err(_) => debug!("{ip} port {port} does not answer within {} s", PATIENCE.as_secs()),
        }
    }
    None
}

async fn get(ip: IpAddr, port: u16) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect((ip, port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with this future.
    let connection = tokio::spawn(connection);
    let request = Request::get("/healthz").header(HOST, ip.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    connection.abort();
    Ok(body.map_err(|error| anyhow::anyhow!(error))?.to_bytes())
}

#[cfg(test)]
mod tests {
    use ipvs::Family;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// What is understood of a node that answers this.
    async fn understood(answer: &str) -> Option<DirectReturnAnswer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = format!("HTTP/1.1 503 No\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            _ = stream.read(&mut request).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        ask(&[address.ip()], address.port()).await
    }

    #[tokio::test]
    async fn a_node_that_says_so_unpacks_healthy_or_not() {
        let answer = r#"{"healthy":false,"unpacks":["IPv4"],"gue":true,"received":{"IPv4":7}}"#;
        let received = [(Family::V4, 7)].into();
        let expected = DirectReturnAnswer { unpacks: Some([Family::V4].into()), gue: true, received };
        assert_eq!(understood(answer).await, Some(expected));
    }

    #[tokio::test]
    async fn another_program_that_answers_unpacks_nothing() {
        for answer in [r#"{"currentTime":"2026-01-01T00:00:00Z"}"#, "ok", ""] {
            assert_eq!(understood(answer).await, Some(DirectReturnAnswer::default()), "{answer}");
        }
    }

    #[tokio::test]
    async fn where_nobody_answers_nothing_is_known() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(ask(&[closed.ip()], closed.port()).await, None);
        assert_eq!(ask(&[], 10256).await, None);
    }
}
