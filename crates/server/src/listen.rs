//! Connections: from the listener to the last answer.

use crate::app::App;
use crate::guard::{guard, nothing, other_method};
use crate::io::Timed;
use crate::routes;
use crate::seats::{BusySeat, Seats};
use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::from_fn_with_state;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use netcl::device::{Error, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::Semaphore;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Maximum bytes of a request head.
const MAX_HEAD: usize = 64 << 10;
/// Maximum number of header fields of a request.
const MAX_HEADERS: usize = 100;
/// Interval between attempts to close a connection for a new one.
const AGAIN: Duration = Duration::from_millis(100);
/// Time for the ends of answers to reach their clients after the drain time is over.
const LAST: Duration = Duration::from_secs(2);

/// Returns the routes with the checks for every request.
pub fn router(app: &Arc<App>) -> Router {
    let router = routes::all()
        .fallback(nothing)
        .method_not_allowed_fallback(other_method)
        .layer(from_fn_with_state(Arc::clone(app), guard))
        .with_state(Arc::clone(app));
    let origins = &app.options.origins;
    if origins.is_empty() {
        return router;
    }
    let origin = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let cors = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, HeaderName::from_static("x-request-id")])
        .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER]);
    router.layer(cors)
}

/// Binds the address.
///
/// # Errors
/// `Io` if it is in use or unknown, `Format` if other machines would be served without a key.
pub async fn bind(app: &App) -> Result<(TcpListener, SocketAddr)> {
    let (host, port) = (app.options.host.trim_matches(['[', ']']), app.options.port);
    let wrong = |e: std::io::Error| {
        let message = match e.kind() {
            ErrorKind::AddrInUse => format!(
                "--port {port} of {host} is in use by another program: choose another port, or 0 for a free one"
            ),
            ErrorKind::AddrNotAvailable => format!(
                "--host {host} is not an address of this machine: use 127.0.0.1 for this machine only, or 0.0.0.0 for all that can reach it"
            ),
            ErrorKind::PermissionDenied => format!(
                "--port {port} is not allowed for this user: ports below 1024 are often reserved for the system, choose another one"
            ),
            _ => format!("listening on {host}:{port}: {e}"),
        };
        Error::new(netcl::device::ErrorKind::Io, message)
    };
    let unknown = |e| Error::format(format!("--host {host} is neither an address nor a known name: {e}"));
    let mut addresses = lookup_host((host, port)).await.map_err(unknown)?;
    let Some(address) = addresses.next() else {
        return Err(Error::format(format!("--host {host} is not an address of this machine")));
    };
    if !address.ip().is_loopback() && app.keys.is_empty() && !app.options.open {
        return Err(Error::format(format!(
            "--host {host} serves other machines: set keys with --api-key or --api-key-file, or pass --no-auth"
        )));
    }
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    Ok((listener, address))
}

/// Serves connections until `stop` completes. Then lets running answers end within the configured time.
pub async fn answer(app: &Arc<App>, listener: TcpListener, stop: impl Future<Output = ()>) {
    let (router, graceful) = (router(app), GracefulShutdown::new());
    let places = Arc::new(Semaphore::new(app.options.connections.max(1)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.options.read_timeout);
    builder.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    tokio::pin!(stop);
    let (seats, mut number) = (Seats::new(), 0);
    'all: loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // For example, too many open files: other connections may end meanwhile.
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let place = loop {
            // An idle connection, or one that sends a body slowly, is closed for a new one.
            if places.available_permits() == 0 {
                seats.make_room();
            }
            tokio::select! {
                place = Arc::clone(&places).acquire_owned() => break place,
                () = tokio::time::sleep(AGAIN) => {}
                () = &mut stop => break 'all,
            }
        };
        // Send each token in a separate packet.
        drop(stream.set_nodelay(true));
        let io = TokioIo::new(Timed::new(stream, app.options.write_timeout));
        number += 1;
        let taken = seats.take(number);
        let (seat, own) = (taken.seat(), TowerToHyperService::new(router.clone()));
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&seat));
            let (busy, answer) = (BusySeat::begin(&seat), own.call(request));
            async move { answer.await.map(|response| busy.during(response)) }
        });
        let connection = graceful.watch(builder.serve_connection(io, service));
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!("a connection ended: {error}");
                },
                () = taken.closed() => tracing::debug!("a connection was closed to make room for another one"),
            }
        });
    }
    drop(listener);
    drained(app, graceful).await;
}

/// Lets running answers end, and aborts those that take too long.
async fn drained(app: &App, graceful: GracefulShutdown) {
    app.draining.store(true, Ordering::SeqCst);
    tracing::info!("stopping: running answers have {} s", app.options.drain.as_secs());
    let ended = graceful.shutdown();
    tokio::pin!(ended);
    if tokio::time::timeout(app.options.drain, &mut ended).await.is_err() {
        tracing::warn!("ending the answers that are still running");
        app.models.stop();
        drop(tokio::time::timeout(LAST, &mut ended).await);
    }
}
