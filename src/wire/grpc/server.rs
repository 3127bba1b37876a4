//! Answering calls: a [`Router`] of handlers, and [`serve`], which runs them over one connection.
//!
//! Each call runs as a task of the loop. A call whose client is gone, or whose deadline
//! (`grpc-timeout`) has passed, is dropped at its next wait. Hostile peers meet h2's own limits
//! (streams, header bytes, CONTINUATION frames, resets, small DATA frames), the count of control
//! frames in `watched`, the message limit, and deadlines for the preface, for a unary request to
//! arrive and for a connection without calls.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use proto_gen::codec::{Message, Method};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};

use super::frames::{Deframer, MESSAGE_LIMIT, decode, frame, frame_bytes, poll_send_piece};
use super::status::{Code, Status};
use super::{CONTENT_TYPE, is_grpc};
use crate::rt;
use crate::sys::clock;
use crate::wire::corked::Cork;
use crate::wire::http1::date;
use crate::wire::watched::Watched;

/// What a peer may do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls at once on a connection.
    pub streams: u32,
    /// Bytes of all headers of a request (by HTTP/2's count: 32 more for each).
    pub header_list: u32,
    /// Bytes of a message, either way.
    pub message: usize,
    /// Until the client's HTTP/2 preface is there.
    pub preface: Duration,
    /// Until a unary call's request is there.
    pub request: Duration,
    /// A unary call in all, when the client names no shorter time.
    pub call: Duration,
    /// A connection without calls.
    pub idle: Duration,
    /// For calls to end, after the connection has been asked to.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            streams: 32,
            header_list: 16 * 1024,
            message: MESSAGE_LIMIT,
            preface: Duration::from_secs(10),
            request: Duration::from_secs(30),
            call: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}

/// Bytes of a stream a client may send before they are taken.
const WINDOW: u32 = 64 * 1024;

/// The same for all streams of a connection together.
const CONNECTION_WINDOW: u32 = 256 * 1024;

/// Bytes of a stream that h2 holds for sending.
const SEND_BUFFER: usize = 64 * 1024;

/// Who calls.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Where from, when it is known.
    pub address: Option<SocketAddr>,
    /// The certificates shown in the TLS handshake, the peer's own first; DER. Empty without TLS
    /// or when it showed none. Whether they hold was the handshake's business.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// What a handler knows of its call.
#[derive(Debug, Clone)]
pub struct Context {
    /// Who calls.
    pub peer: Rc<Peer>,
    /// `/package.Service/Method`.
    pub path: String,
    /// The request's headers.
    pub metadata: HeaderMap,
    /// When the client gives up.
    pub deadline: Option<Instant>,
}

type Answering = Pin<Box<dyn Future<Output = Result<(), Status>>>>;
type Handler = Box<dyn Fn(Context, Incoming, Outgoing, &Limits) -> Answering>;

/// Handlers by path.
#[derive(Default)]
pub struct Router {
    handlers: BTreeMap<&'static str, Handler>,
}

impl Router {
    /// A router without methods: everything is UNIMPLEMENTED.
    pub fn new() -> Router {
        Router::default()
    }

    /// Answers a unary method with `handler`.
    pub fn unary<Q, R, F, A>(&mut self, method: &Method<Q, R>, handler: F)
    where
        Q: Message + 'static,
        R: Message + 'static,
        F: Fn(Context, Q) -> A + 'static,
        A: Future<Output = Result<R, Status>> + 'static,
    {
        self.unary_bytes(method.path(), move |context, bytes| {
            // Its length was judged when it came.
            let answer = decode(&bytes, MESSAGE_LIMIT.max(bytes.len()))
                .map_err(undecodable)
                .map(|q| handler(context, q));
            async move { Ok(answer?.await?.encode_to_vec()) }
        });
    }

    /// Answers a unary method whose messages are passed on as they are, encoded: for a relay.
    pub fn unary_bytes<F, A>(&mut self, path: &'static str, handler: F)
    where
        F: Fn(Context, Vec<u8>) -> A + 'static,
        A: Future<Output = Result<Vec<u8>, Status>> + 'static,
    {
        let handler = Rc::new(handler);
        let answer =
            move |context: Context, mut incoming: Incoming, outgoing: Outgoing, limits: &Limits| {
                let handler = handler.clone();
                let (wait, whole, limit) = (limits.request, limits.call, limits.message);
                Box::pin(async move {
                    let late = |what: &str, after| {
                        let message = format!("{what} took longer than {}", rt::Seconds(after));
                        Status::new(Code::DeadlineExceeded, message)
                    };
                    let request = rt::timeout(wait, incoming.only())
                        .await
                        .map_err(|_| late("sending the request", wait))??;
                    let answer = async {
                        let answer = handler(context, request).await?;
                        outgoing.send(frame_bytes(&answer, limit)?).await
                    };
                    rt::timeout(whole, answer)
                        .await
                        .map_err(|_| late("the call", whole))?
                }) as Answering
            };
        self.handlers.insert(path, Box::new(answer));
    }

    /// Answers a method that streams both ways. The call ends with what `handler` returns.
    pub fn bidi<Q, R, F, A>(&mut self, method: &Method<Q, R>, handler: F)
    where
        Q: Message + 'static,
        R: Message + 'static,
        F: Fn(Context, Receiver<Q>, Sender<R>) -> A + 'static,
        A: Future<Output = Result<(), Status>> + 'static,
    {
        let answer =
            move |context: Context, incoming: Incoming, outgoing: Outgoing, limits: &Limits| {
                let receiver = Receiver {
                    incoming,
                    limit: limits.message,
                    kind: PhantomData,
                };
                let sender = Sender {
                    outgoing,
                    limit: limits.message,
                    kind: PhantomData,
                };
                Box::pin(handler(context, receiver, sender)) as Answering
            };
        self.handlers.insert(method.path(), Box::new(answer));
    }
}

fn undecodable(error: proto_gen::codec::DecodeError) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("the request cannot be decoded: {error}"),
    )
}

/// The client's half of a call.
struct Incoming {
    body: RecvStream,
    frames: Deframer,
    ended: bool,
}

impl Incoming {
    async fn next(&mut self) -> Result<Option<&[u8]>, Status> {
        loop {
            if self.frames.has_next()? {
                return self.frames.next();
            }
            if self.ended {
                return Ok(None);
            }
            match self.body.data().await {
                Some(Ok(piece)) => {
                    let _ = self.body.flow_control().release_capacity(piece.len());
                    self.frames.push(&piece);
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Err(Status::new(
                        Code::Cancelled,
                        format!("the call broke: {error}"),
                    ));
                }
                None => {
                    self.ended = true;
                    if !self.frames.is_empty() {
                        let message = "the request ended in the middle of a message";
                        return Err(Status::new(Code::Internal, message));
                    }
                }
            }
        }
    }

    /// The one message of a unary call.
    async fn only(&mut self) -> Result<Vec<u8>, Status> {
        let malformed = |message: &str| Status::new(Code::Internal, message);
        let request = match self.next().await? {
            Some(message) => message.to_vec(),
            None => return Err(malformed("a unary call without a message")),
        };
        match self.next().await? {
            None => Ok(request),
            Some(_) => Err(malformed("a unary call with two messages")),
        }
    }
}

/// The client's messages.
pub struct Receiver<Q> {
    incoming: Incoming,
    limit: usize,
    kind: PhantomData<fn() -> Q>,
}

impl<Q: Message> Receiver<Q> {
    /// The next message; `None` when the client will send no more. May be dropped and called
    /// again (in a `select`): nothing is lost.
    ///
    /// # Errors
    /// A status to end the call with: the call broke, or the message is not acceptable.
    pub async fn next(&mut self) -> Result<Option<Q>, Status> {
        let limit = self.limit;
        match self.incoming.next().await? {
            None => Ok(None),
            Some(message) => decode(message, limit).map(Some).map_err(undecodable),
        }
    }
}

enum Out {
    /// Nothing has been sent.
    Head(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
    Ended,
}

/// Our half of a call: shared by the handler's senders and the task that runs the handler.
///
/// h2 keeps one waker a stream for sending, and both wait on it. So it is always the task's: a
/// sender elsewhere leaves its own in `waiting`, and the task passes wake-ups on.
struct Shared {
    out: RefCell<Out>,
    driver: RefCell<Option<Waker>>,
    waiting: Cell<Option<Waker>>,
}

#[derive(Clone)]
struct Outgoing(Rc<Shared>);

fn gone() -> Status {
    Status::new(Code::Cancelled, "the client has ended the call")
}

impl Outgoing {
    /// The answer's head, once.
    fn start(out: &mut Out) -> Result<&mut SendStream<Bytes>, Status> {
        if let Out::Head(respond) = out {
            let stream = respond
                .send_response(grpc_head(), false)
                .map_err(|_| gone())?;
            *out = Out::Body(stream);
        }
        match out {
            Out::Body(stream) => Ok(stream),
            _ => Err(gone()),
        }
    }

    async fn send(&self, mut framed: Bytes) -> Result<(), Status> {
        poll_fn(|cx| {
            loop {
                let more = ready!(self.poll_piece(&mut framed, cx))?;
                if !more {
                    return Poll::Ready(Ok(()));
                }
            }
        })
        .await
    }

    fn poll_piece(
        &self,
        framed: &mut Bytes,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<bool, Status>> {
        let mut out = self.0.out.borrow_mut();
        let stream = Outgoing::start(&mut out)?;
        let driver = self.0.driver.borrow().clone();
        let own = cx.waker().clone();
        let mut driver = TaskContext::from_waker(driver.as_ref().unwrap_or(&own));
        match poll_send_piece(stream, framed, false, &mut driver) {
            Poll::Ready(Ok(Some(more))) => Poll::Ready(Ok(more)),
            Poll::Ready(Ok(None) | Err(_)) => Poll::Ready(Err(gone())),
            Poll::Pending => {
                self.0.waiting.set(Some(own));
                Poll::Pending
            }
        }
    }

    /// Ends when the client has reset the stream, or the connection broke. Polled by the task that
    /// runs the handler, at each of its turns.
    fn poll_gone(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.0.driver.replace(Some(cx.waker().clone()));
        let gone = match &mut *self.0.out.borrow_mut() {
            Out::Head(respond) => respond.poll_reset(cx).is_ready(),
            Out::Body(stream) => stream.poll_reset(cx).is_ready(),
            Out::Ended => false,
        };
        if let Some(waiting) = self.0.waiting.take()
            && !waiting.will_wake(cx.waker())
        {
            waiting.wake();
        }
        if gone { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The last word: trailers, or a trailers-only answer.
    fn finish(&self, status: &Status) {
        match self.0.out.replace(Out::Ended) {
            Out::Head(mut respond) => {
                let mut head = grpc_head();
                status.put(head.headers_mut());
                let _ = respond.send_response(head, true);
            }
            Out::Body(mut stream) => {
                let mut trailers = HeaderMap::new();
                status.put(&mut trailers);
                let _ = stream.send_trailers(trailers);
            }
            Out::Ended => {}
        }
        if let Some(waiting) = self.0.waiting.take() {
            waiting.wake();
        }
    }

    fn reset(&self) {
        match self.0.out.replace(Out::Ended) {
            Out::Head(mut respond) => respond.send_reset(Reason::CANCEL),
            Out::Body(mut stream) => stream.send_reset(Reason::CANCEL),
            Out::Ended => {}
        }
        if let Some(waiting) = self.0.waiting.take() {
            waiting.wake();
        }
    }
}

fn grpc_head() -> Response<()> {
    let mut head = Response::new(());
    *head.version_mut() = http::Version::HTTP_2;
    head.headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    // What gRPC asks of a server that refuses a compressed request.
    let identity = HeaderValue::from_static("identity");
    head.headers_mut().insert("grpc-accept-encoding", identity);
    // For who has no other way to know the time (RFC 9110, section 6.6.1).
    let date = date::imf_fixdate(clock::wall_ms() / 1000);
    if let Ok(date) = HeaderValue::from_str(&date) {
        head.headers_mut().insert(header::DATE, date);
    }
    head
}

/// Our messages. It may move to another task of the same loop; when the handler has returned,
/// sending fails.
pub struct Sender<R> {
    outgoing: Outgoing,
    limit: usize,
    kind: PhantomData<fn(R)>,
}

impl<R: Message> Sender<R> {
    /// Sends a message, as fast as the client takes it. Not to be dropped half-way: the stream is
    /// then of no more use.
    ///
    /// # Errors
    /// The client has gone, or the message is above the limit.
    pub async fn send(&mut self, message: &R) -> Result<(), Status> {
        self.outgoing.send(frame(message, self.limit)?).await
    }

    /// Sends the answer's head now, instead of with the first message: the client then knows that
    /// the stream is open.
    ///
    /// # Errors
    /// The client has gone.
    pub fn open(&mut self) -> Result<(), Status> {
        Outgoing::start(&mut self.outgoing.0.out.borrow_mut()).map(|_| ())
    }
}

/// Why a connection ended, other than by the client's or our own wish.
#[derive(Debug)]
pub enum ServeError {
    /// The HTTP/2 preface took longer than this.
    PrefaceTimedOut(Duration),
    /// The client broke HTTP/2's rules or ours, or the connection broke.
    Http2(h2::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::PrefaceTimedOut(after) => {
                write!(
                    f,
                    "the client's HTTP/2 preface took longer than {}",
                    rt::Seconds(*after)
                )
            }
            ServeError::Http2(_) => f.write_str("the HTTP/2 connection broke"),
        }
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ServeError::PrefaceTimedOut(_) => None,
            ServeError::Http2(error) => Some(error),
        }
    }
}

/// Serves one connection until the client closes it or leaves it idle.
///
/// # Errors
/// [`ServeError`]: worth a line in a log, no more.
pub async fn serve<IO>(
    io: IO,
    peer: Peer,
    router: Rc<Router>,
    limits: Limits,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    serve_until(io, peer, router, limits, pending()).await
}

/// As [`serve`]; when `shutdown` ends, no new call is taken (GOAWAY), and those that run get
/// [`Limits::drain`] to end.
///
/// # Errors
/// As [`serve`].
pub async fn serve_until<IO>(
    io: IO,
    peer: Peer,
    router: Rc<Router>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_list)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(32)
        .max_local_error_reset_streams(Some(64));
    let (cork, io) = Cork::new(io);
    // On the heap: the task of a connection is not to hold what it needed at its beginning.
    let mut handshake = Box::pin(builder.handshake::<_, Bytes>(Watched::new(io, true)));
    let turns = &cork;
    let handshake = poll_fn(move |cx| turns.turn(cx, |cx| handshake.as_mut().poll(cx)));
    let handshake = Box::pin(rt::timeout(limits.preface, handshake));
    let mut connection = match handshake.await {
        Ok(shaken) => shaken.map_err(ServeError::Http2)?,
        Err(_) => return Err(ServeError::PrefaceTimedOut(limits.preface)),
    };
    let peer = Rc::new(peer);
    let mut shutdown = pin!(shutdown);
    let mut leaving = false;
    let mut idle: Option<rt::Sleep> = None;
    loop {
        let mut poll_next = |cx: &mut TaskContext<'_>| {
            if let Poll::Ready(request) = connection.poll_accept(cx) {
                return Poll::Ready(Some(request));
            }
            if !leaving && shutdown.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            if !leaving && connection.has_streams() {
                idle = None;
                return Poll::Pending;
            }
            let wait = if leaving { limits.drain } else { limits.idle };
            let idle = idle.get_or_insert_with(|| rt::sleep(wait));
            Pin::new(idle).poll(cx).map(|()| None)
        };
        let next = poll_fn(|cx| cork.turn(cx, &mut poll_next)).await;
        match next {
            Some(Some(Ok((request, respond)))) => {
                idle = None;
                accept(request, respond, &peer, &router, &limits);
            }
            Some(Some(Err(error))) if leaving && error.is_io() => return Ok(()),
            Some(Some(Err(error))) => return Err(ServeError::Http2(error)),
            Some(None) => return Ok(()),
            None if leaving => {
                connection.abrupt_shutdown(Reason::NO_ERROR);
                let _ = rt::timeout(
                    Duration::from_secs(1),
                    poll_fn(|cx| cork.turn(cx, |cx| connection.poll_closed(cx))),
                )
                .await;
                return Ok(());
            }
            None => {
                leaving = true;
                idle = None;
                connection.graceful_shutdown();
            }
        }
    }
}

/// Starts a call's task, or refuses the request.
fn accept(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    peer: &Rc<Peer>,
    router: &Rc<Router>,
    limits: &Limits,
) {
    let (head, body) = request.into_parts();
    let refusal = if head.method != http::Method::POST {
        Some(StatusCode::METHOD_NOT_ALLOWED)
    } else if !is_grpc(&head.headers) {
        Some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    } else {
        None
    };
    if let Some(status) = refusal {
        let mut answer = Response::new(());
        *answer.status_mut() = status;
        let _ = respond.send_response(answer, true);
        return;
    }
    let shared = Shared {
        out: RefCell::new(Out::Head(respond)),
        driver: RefCell::default(),
        waiting: Cell::default(),
    };
    let outgoing = Outgoing(Rc::new(shared));
    let Some(handler) = router.handlers.get(head.uri.path()) else {
        let message = format!("there is no method {} here", head.uri.path());
        outgoing.finish(&Status::new(Code::Unimplemented, message));
        return;
    };
    let wait = match head.headers.get("grpc-timeout").map(parse_timeout) {
        None => None,
        Some(Some(wait)) => Some(wait),
        Some(None) => {
            let message = "grpc-timeout is malformed: it is 1 to 8 digits and one of H M S m u n";
            outgoing.finish(&Status::new(Code::Internal, message));
            return;
        }
    };
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    let context = Context {
        peer: peer.clone(),
        path: head.uri.path().to_owned(),
        metadata: head.headers,
        deadline,
    };
    let incoming = Incoming {
        body,
        frames: Deframer::new(limits.message),
        ended: false,
    };
    let answering = handler(context, incoming, outgoing.clone(), limits);
    rt::spawn(run(answering, outgoing, deadline));
}

/// Runs a handler to its end, its deadline, or its client's.
async fn run(mut answering: Answering, outgoing: Outgoing, deadline: Option<Instant>) {
    let watch = outgoing.clone();
    let answered = poll_fn(move |cx| {
        if watch.poll_gone(cx).is_ready() {
            return Poll::Ready(None);
        }
        answering.as_mut().poll(cx).map(Some)
    });
    let answered = match deadline {
        None => answered.await,
        Some(deadline) => match rt::timeout_at(deadline, answered).await {
            Ok(answered) => answered,
            Err(_) => Some(Err(Status::new(
                Code::DeadlineExceeded,
                "the call's deadline has passed",
            ))),
        },
    };
    match answered {
        None => outgoing.reset(),
        Some(Ok(())) => outgoing.finish(&Status::new(Code::Ok, "")),
        Some(Err(status)) => outgoing.finish(&status),
    }
}

/// `grpc-timeout`.
pub(super) fn parse_timeout(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}
