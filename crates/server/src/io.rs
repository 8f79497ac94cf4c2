//! A connection with a write timeout.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A stream on which a write without progress fails after a timeout: the client has disconnected or does not read.
pub struct Timed {
    stream: TcpStream,
    timeout: Duration,
    /// Runs while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// Sets a time limit for each write.
    pub fn new(stream: TcpStream, timeout: Duration) -> Self {
        Self { stream, timeout, waits: None }
    }

    /// Returns the result of a write, or a timeout error.
    fn in_time<T>(&mut self, done: Poll<Result<T>>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if done.is_ready() {
            self.waits = None;
            return done;
        }
        let timeout = self.timeout;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(waits.as_mut().poll(context));
        waits.as_mut().reset(Instant::now() + timeout);
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let own = self.get_mut();
        let done = Pin::new(&mut own.stream).poll_write(context, bytes);
        own.in_time(done, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let own = self.get_mut();
        let done = Pin::new(&mut own.stream).poll_write_vectored(context, parts);
        own.in_time(done, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
