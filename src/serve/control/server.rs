//! The daemon's end of the control socket.

use std::{
    fs::{self, Permissions},
    future, io, mem,
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::geteuid,
};
use service::one_line;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{OnceCell, Semaphore},
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{Control, Request, encode_refusal};
use crate::takeover::instance_lock::{InstanceLock, InstanceLockError, make_directory};

/// The most bytes of a request, with its newline.
const LONGEST_REQUEST: u64 = 4096;
/// How long a client may take to ask, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The clients served at a time; the others wait in the socket's queue.
pub(super) const CLIENTS: usize = 32;
/// The requests handled at a time, each by a thread that may wait for the writer.
const ANSWERS: usize = 8;
/// How often a waiting client is checked: it may have given up.
const CLIENT_CHECK: Duration = Duration::from_millis(500);
/// How often a daemon checks whether the one it waits for has ended.
const TURN_CHECK: Duration = Duration::from_millis(100);
/// The pause before a socket that could not be made is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The daemon behind its socket: it answers a request, or says in one line why it cannot.
pub trait RequestHandler: Control<Error = String> + Send + Sync + 'static {}

impl<T: Control<Error = String> + Send + Sync + 'static> RequestHandler for T {}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum NoSocket {
    /// The path is taken by a file that is not a socket. It is not removed.
    #[error("{path} is not a socket, so the control socket cannot be made", path = path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("control socket {path}: cannot {operation}", path = path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// The daemon's end of the control socket. It holds the instance lock.
///
/// The socket may be missing, on a disk that is full or read-only: it is for operators, and traffic has to be
/// forwarded without it. It is made as soon as possible.
#[derive(Debug)]
pub struct ControlServer {
    listener: OnceCell<UnixListener>,
    path: PathBuf,
    refused: Option<NoSocket>,
    instance_lock: Arc<InstanceLock>,
}

impl ControlServer {
    /// Binds as [`ControlServer::bind`] does, after waiting until no other daemon works on the node: the next proxy
    /// of a node may be started before its last one has ended.
    pub async fn bind_in_turn(path: &Path) -> Result<Self, InstanceLockError> {
        let mut waits = false;
        loop {
            match Self::bind(path) {
                Err(another @ InstanceLockError::AnotherRuns { .. }) => {
                    if !waits {
                        warn!("{}: waiting until it ends", another.named());
                    }
                    waits = true;
                    sleep(TURN_CHECK).await;
                }
                bound => return bound,
            }
        }
    }

    /// Opens the socket if possible ([`ControlServer::refused`]), replacing one that a dead process has left. Must be
    /// called within a tokio runtime.
    pub fn bind(path: &Path) -> Result<Self, InstanceLockError> {
        let instance_lock = InstanceLock::acquire(path)?;
        let (listener, refused) = match listen(path) {
            Ok(listener) => (OnceCell::new_with(Some(listener)), None),
            Err(refused) => {
                warn!("{}; continuing without it and trying again", one_line(&refused));
                (OnceCell::new(), Some(refused))
            }
        };
        Ok(Self { listener, path: path.to_owned(), refused, instance_lock: Arc::new(instance_lock) })
    }

    /// Keeps the instance lock until the process ends, even if this is dropped before: threads that hang in the kernel
    /// outlive everything else, and no other daemon may begin beside them.
    pub fn keep_lock_until_exit(&self) {
        mem::forget(self.instance_lock.clone());
    }

    /// Why the socket could not be made at the start.
    pub fn refused(&self) -> Option<&NoSocket> {
        self.refused.as_ref()
    }

    /// The instance lock, which no other part of the program may keep.
    pub(crate) fn instance_lock(&self) -> Weak<InstanceLock> {
        Arc::downgrade(&self.instance_lock)
    }

    /// Waits for the socket to exist.
    async fn listener(&self) -> &UnixListener {
        let made_at_last = async || loop {
            sleep(RETRY).await;
            if let Ok(listener) = listen(&self.path) {
                info!("made the control socket {path}", path = self.path.display());
                return listener;
            }
        };
        self.listener.get_or_init(made_at_last).await
    }

    /// Answers clients until the future is dropped. The instance lock stays as long as the server.
    pub async fn serve(&self, handler: impl RequestHandler) {
        let handler = Arc::new(handler);
        let clients = Arc::new(Semaphore::new(CLIENTS));
        let threads = Arc::new(Semaphore::new(ANSWERS));
        let listener = self.listener().await;
        loop {
            let Ok(client) = Arc::clone(&clients).acquire_owned().await else {
                return future::pending().await;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely out of file descriptors.
                    warn!(%error, "cannot accept on the control socket");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let (handler, threads) = (Arc::clone(&handler), Arc::clone(&threads));
            tokio::spawn(async move {
                if let Err(error) = converse(stream, handler, threads).await {
                    debug!(%error, "a client of the control socket went away");
                }
                drop(client);
            });
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // Otherwise the next daemon removes it. A file that is not our socket stays.
        if self.listener.initialized() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the socket, mode 0600, and its directory if need be.
fn listen(path: &Path) -> Result<UnixListener, NoSocket> {
    let failed = |operation| move |source| NoSocket::Io { path: path.to_owned(), operation, source };
    make_directory(path).map_err(failed("make its directory"))?;
    match fs::symlink_metadata(path) {
        Ok(left) if left.file_type().is_socket() => {
            fs::remove_file(path).map_err(failed("remove a stale one"))?;
        }
        Ok(_) => return Err(NoSocket::InTheWay { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("read its path")(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed("listen"))?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed("set its mode"))?;
    Ok(listener)
}

/// Reads one request and answers it, unless the client gives up before.
async fn converse(
    mut stream: UnixStream,
    handler: Arc<impl RequestHandler>,
    threads: Arc<Semaphore>,
) -> io::Result<()> {
    let line = if is_allowed(&stream)? {
        match timeout(PATIENCE, read_request(&mut stream)).await?? {
            Ok(request) => tokio::select! {
                line = answer(request, handler, threads) => line?,
                gone = gone(&stream) => return Err(gone),
            },
            Err(error) => encode_refusal(format!("malformed request: {error}"))?,
        }
    } else {
        encode_refusal("only root may talk to kube-ipvs".to_owned())?
    };
    timeout(PATIENCE, stream.write_all(&line)).await?
}

/// Handles the request on a thread for blocking work. If the writer hangs, the thread hangs with it, even after its
/// client has left. So their number is limited; requests that need no writer do not count.
async fn answer(
    request: Request,
    handler: Arc<impl RequestHandler>,
    threads: Arc<Semaphore>,
) -> io::Result<Vec<u8>> {
    let thread = if request.needs_writer() { threads.acquire_owned().await.ok() } else { None };
    let answered = spawn_blocking(move || {
        let _thread = thread;
        request.answered_by(&*handler)
    });
    Ok(answered.await??)
}

/// Returns when the client is gone. A client may close its writing half and still read, so the end of input is not
/// enough.
async fn gone(stream: &UnixStream) -> io::Error {
    loop {
        sleep(CLIENT_CHECK).await;
        // Without requested events the kernel still reports a socket closed at the other end (POLLHUP).
        match poll(&mut [PollFd::new(stream.as_fd(), PollFlags::empty())], PollTimeout::ZERO) {
            Ok(0) => {}
            Ok(_) => return io::ErrorKind::ConnectionAborted.into(),
            Err(errno) => return errno.into(),
        }
    }
}

/// Whether the peer is root or our own user. The modes of the socket and its directory keep others out already,
/// unless they were changed.
fn is_allowed(stream: &UnixStream) -> io::Result<bool> {
    let uid = stream.peer_cred()?.uid();
    Ok(uid == 0 || uid == geteuid().as_raw())
}

async fn read_request(stream: &mut UnixStream) -> io::Result<Result<Request, serde_json::Error>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_REQUEST)).read_until(b'\n', &mut line).await?;
    Ok(Request::decode(&line))
}
