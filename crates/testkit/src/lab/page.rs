//! Pages that hosts request by HTTP.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, Result, bail};

use super::{Host, client::PATIENCE};

/// An answer by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its status: `200`.
    pub status: u16,
    /// Its headers, one per line, with names in lower case.
    pub headers: String,
    /// What comes after them.
    pub body: String,
}

impl Page {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Host {
    /// Requests a page from a server. Each call makes a new connection.
    pub fn get(&self, server: SocketAddr, path: &str) -> Result<Page> {
        let path = path.to_owned();
        let page = self.inside(move || fetch(server, &path))?;
        page.with_context(|| format!("{} asks {server} for a page", self.name))
    }
}

fn fetch(server: SocketAddr, path: &str) -> Result<Page> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // With HTTP/1.0 the answer ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("not a page: {answer:?}") };
    let (first, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = first.split(' ').nth(1).unwrap_or_default();
    let status = status.parse().with_context(|| format!("not a status: {first:?}"))?;
    Ok(Page { status, headers: headers.replace("\r\n", "\n"), body: body.to_owned() })
}
