//! Calls: connect once, then any number of calls over the one connection.
//!
//! A call that fails says in which [`Phase`] and why ([`Cause`]). [`CallError::code`] is what to
//! decide by: the peer's code, or the one gRPC gives to what happened on the way.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use std::cell::Cell;
use std::future::{Future, pending};
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderValue, Method as Verb, Request, Uri, header};
use proto_gen::codec::{Message, Method};

use super::frames::{Deframer, MESSAGE_LIMIT, decode, frame, frame_encoded, send};
use super::status::{Code, Status};
use super::{CONTENT_TYPE, USER_AGENT, is_grpc};
use crate::rt;
use crate::wire::dial::{self, DialError, Line, TlsTarget, Tried};
use crate::wire::http1::date;
pub use crate::wire::phase::Phase;
use crate::wire::url;
use crate::wire::watched::{Signs, Watched};
use crate::wire::websocket::Way;

pub use self::error::{CallError, Cause};

mod error;

/// Bytes of a stream a server may send before they are taken.
const WINDOW: u32 = 64 * 1024;

/// The same for all streams together.
const CONNECTION_WINDOW: u32 = 128 * 1024;

/// Bytes of a stream that h2 holds for sending.
const SEND_BUFFER: usize = 32 * 1024;

/// Bytes of all headers of an answer.
const HEADER_LIST: u32 = 16 * 1024;

/// How long each phase of connecting may take.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The look-up, and connecting, each.
    pub connect: Duration,
    /// The TLS handshake.
    pub tls: Duration,
    /// Until the server's first HTTP/2 frame, from the handshake on.
    pub settings: Duration,
}

impl Default for Waits {
    /// Ten seconds each.
    fn default() -> Waits {
        let wait = Duration::from_secs(10);
        Waits {
            connect: wait,
            tls: wait,
            settings: wait,
        }
    }
}

/// Where a server is, and how to speak to it.
#[derive(Clone)]
pub struct Endpoint {
    /// A name or a literal address (`192.0.2.1`, `::1`, `[::1]`).
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// TLS, and the name the certificate must be for; `None` speaks plain HTTP/2. The
    /// configuration should offer `h2` by ALPN.
    pub tls: Option<TlsTarget>,
    /// The WebSocket it is reached through; `host` and `port` are then for logs alone.
    pub websocket: Option<Rc<Way>>,
    /// What it is reached over instead of the network; `host` and `port` are then for logs alone.
    pub line: Option<Rc<dyn Line>>,
    /// Deadlines of connecting.
    pub waits: Waits,
    /// Which of the name's addresses are tried last.
    pub tried: Rc<Tried>,
    /// The largest message, either way.
    pub message_limit: usize,
}

impl Endpoint {
    /// Plain HTTP/2 with the usual deadlines and limit.
    pub fn new(host: impl Into<String>, port: u16) -> Endpoint {
        Endpoint {
            host: host.into(),
            port,
            tls: None,
            websocket: None,
            line: None,
            waits: Waits::default(),
            tried: Rc::default(),
            message_limit: MESSAGE_LIMIT,
        }
    }
}

/// A connection to a server. Clones share it; it closes with the last clone and the last call.
#[derive(Clone)]
pub struct Client {
    requests: SendRequest<Bytes>,
    target: Rc<Target>,
}

struct Target {
    scheme: &'static str,
    authority: String,
    message_limit: usize,
    signs: Rc<Signs>,
    settings: (Instant, Duration),
}

impl Client {
    /// Looks the server up, connects, and shakes hands.
    ///
    /// # Errors
    /// [`CallError`] with the phase that failed or took too long. That the server says nothing in
    /// HTTP/2 is noticed by the first call, which waits for it anyway.
    pub async fn connect(endpoint: &Endpoint) -> Result<Client, CallError> {
        let Endpoint {
            host, port, waits, ..
        } = endpoint;
        let tried = &endpoint.tried;
        let stream = match (&endpoint.line, &endpoint.websocket) {
            (Some(line), _) => line.open(waits.connect).await.map_err(DialError::Connect),
            (None, Some(way)) => dial::through(way, waits.connect, waits.tls, tried).await,
            (None, None) => {
                let tls = endpoint.tls.is_some();
                dial::connect(host, *port, tls, waits.connect, tried).await
            }
        };
        Client::through(stream.map_err(CallError::dial)?, endpoint).await
    }

    /// As [`Client::connect`], over a TCP connection that is there already.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn over(stream: rt::TcpStream, endpoint: &Endpoint) -> Result<Client, CallError> {
        Client::through(rt::Stream::Plain(stream), endpoint).await
    }

    async fn through(stream: rt::Stream, endpoint: &Endpoint) -> Result<Client, CallError> {
        let stream = dial::secure(stream, endpoint.tls.as_ref(), endpoint.waits.tls)
            .await
            .map_err(CallError::dial)?;
        Client::handshake(stream, endpoint).await
    }

    async fn handshake(io: rt::Stream, endpoint: &Endpoint) -> Result<Client, CallError> {
        if let (Some((config, _)), rt::Stream::Tls(tls)) = (&endpoint.tls, &io)
            && !config.alpn_protocols.is_empty()
            && tls.alpn() != Some(b"h2")
        {
            return Err(CallError::new(Phase::Tls, Cause::NoHttp2));
        }
        let io = Watched::new(io, false);
        let signs = io.signs();
        let settings = (
            Instant::now() + endpoint.waits.settings,
            endpoint.waits.settings,
        );
        let shaken = rt::timeout(
            endpoint.waits.settings,
            h2::client::Builder::new()
                .initial_window_size(WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buffer_size(SEND_BUFFER)
                .max_header_list_size(HEADER_LIST)
                .enable_push(false)
                .handshake::<_, Bytes>(io),
        )
        .await;
        let (requests, connection) = match shaken {
            Ok(Ok(shaken)) => shaken,
            Ok(Err(error)) => return Err(CallError::broken(&signs, Phase::Settings, error)),
            Err(_) => return Err(CallError::new(Phase::Settings, Cause::TimedOut(settings.1))),
        };
        rt::spawn(async move {
            // Every call hears of it too.
            let _ = connection.await;
        });
        let target = Rc::new(Target {
            scheme: if endpoint.tls.is_some() {
                "https"
            } else {
                "http"
            },
            authority: url::authority(&endpoint.host, endpoint.port, endpoint.tls.is_some()),
            message_limit: endpoint.message_limit,
            signs,
            settings,
        });
        Ok(Client { requests, target })
    }

    /// One request, one answer, within `wait` (which the server is told).
    ///
    /// # Errors
    /// [`CallError`]; a missed deadline cancels the call at the server.
    pub async fn unary<Q: Message, R: Message>(
        &self,
        method: &Method<Q, R>,
        request: &Q,
        wait: Duration,
    ) -> Result<R, CallError> {
        let framed = frame(request, self.target.message_limit)
            .map_err(|status| CallError::new(Phase::Request, Cause::Status(status)))?;
        let answer = self.unary_bytes(method.path(), framed, wait).await?;
        decode(&answer, self.target.message_limit)
            .map_err(|error| CallError::new(Phase::Answer, Cause::Decode(error)))
    }

    async fn unary_bytes(
        &self,
        path: &'static str,
        framed: Bytes,
        wait: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let phase = Cell::new(Phase::Request);
        let call = async {
            let (mut sending, mut receiving) = self.open(path, Some(wait)).await?;
            // The server may answer before it has taken the whole request.
            let sent = send(&mut sending, framed, true).await;
            phase.set(Phase::Answer);
            let missing = || Status::new(Code::Internal, "the server answered without a message");
            let answer = match receiving.next().await {
                Ok(Some(message)) => message.to_vec(),
                Ok(None) => return Err(CallError::answer(missing())),
                Err(error) => match (sent, error.cause) {
                    // The stream's end is more telling than that sending broke.
                    (Err(sent), Cause::Http2(_)) => {
                        return Err(self.broken(Phase::Request, sent));
                    }
                    (_, cause) => return Err(CallError::new(error.phase, cause)),
                },
            };
            match receiving.next().await? {
                None => Ok(answer),
                Some(_) => Err(CallError::answer(Status::new(
                    Code::Internal,
                    "the server answered a unary call with two messages",
                ))),
            }
        };
        let silent = self.silence();
        match rt::timeout(wait, rt::select(call, silent)).await {
            Ok(rt::Either::Left(result)) => result,
            Ok(rt::Either::Right(error)) => Err(error),
            Err(_) => {
                let phase = if self.target.signs.heard() {
                    phase.get()
                } else {
                    Phase::Settings
                };
                Err(CallError::new(phase, Cause::TimedOut(wait)))
            }
        }
    }

    /// Calls a method that no server has: that there is an answer shows that the server takes this client's
    /// certificate. The time in it by the server's clock, Unix seconds, where it says one.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer.
    pub async fn probe(&self, wait: Duration) -> Result<Option<u64>, CallError> {
        let call = async {
            let (mut sending, incoming) = self.open("/bcd.doctor/Probe", Some(wait)).await?;
            // The server may have answered before.
            let _ = sending.send_data(Bytes::new(), true);
            let State::Waiting(answer) = incoming.state else {
                return Ok(None);
            };
            let answer = answer.await;
            let answer = answer.map_err(|error| self.broken(Phase::Answer, error))?;
            let date = answer.headers().get(header::DATE);
            Ok(date.and_then(|date| date::parse(date.to_str().ok()?)))
        };
        match rt::timeout(wait, call).await {
            Ok(answered) => answered,
            Err(_) => Err(CallError::new(Phase::Answer, Cause::TimedOut(wait))),
        }
    }

    /// Opens a stream both ways. With `wait`, the server is told, and the answers end by then.
    ///
    /// # Errors
    /// [`CallError`] when the request cannot be sent.
    pub async fn stream<Q: Message, R: Message>(
        &self,
        method: &Method<Q, R>,
        wait: Option<Duration>,
    ) -> Result<(Sender<Q>, Receiver<R>), CallError> {
        let limit = self.target.message_limit;
        let opening = rt::select(self.open(method.path(), wait), self.silence());
        let opened = match wait {
            None => opening.await,
            Some(wait) => rt::timeout(wait, opening)
                .await
                .map_err(|_| CallError::new(Phase::Request, Cause::TimedOut(wait)))?,
        };
        let (stream, incoming) = match opened {
            rt::Either::Left(opened) => opened?,
            rt::Either::Right(error) => return Err(error),
        };
        let deadline = wait.map(|wait| (Instant::now() + wait, wait));
        Ok((
            Sender {
                stream,
                limit,
                client: self.clone(),
                kind: PhantomData,
            },
            Receiver {
                incoming,
                client: self.clone(),
                deadline,
                kind: PhantomData,
            },
        ))
    }

    /// Ends when the server has sent GOAWAY: calls under way may go on, new ones need another
    /// connection. For one task.
    pub async fn leaving(&self) {
        self.target.signs.leaving().await;
    }

    /// Ends, with the error, when the server has not said a word of HTTP/2 in time.
    fn silence(&self) -> impl Future<Output = CallError> + use<> {
        let target = self.target.clone();
        async move {
            let (deadline, wait) = target.settings;
            if !target.signs.heard() {
                rt::sleep_until(deadline).await;
                if !target.signs.heard() {
                    return CallError::new(Phase::Settings, Cause::TimedOut(wait));
                }
            }
            pending().await
        }
    }

    fn broken(&self, phase: Phase, error: h2::Error) -> CallError {
        CallError::broken(&self.target.signs, phase, error)
    }

    async fn open(
        &self,
        path: &'static str,
        wait: Option<Duration>,
    ) -> Result<(SendStream<Bytes>, Incoming), CallError> {
        let broken = |error| self.broken(Phase::Request, error);
        let uri = Uri::builder()
            .scheme(self.target.scheme)
            .authority(self.target.authority.as_str())
            .path_and_query(path)
            .build();
        let Ok(uri) = uri else {
            let status = Status::new(Code::Internal, "the server's name fits no URL");
            return Err(CallError::new(Phase::Request, Cause::Status(status)));
        };
        let mut request = Request::new(());
        *request.method_mut() = Verb::POST;
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if let Some(wait) = wait
            && let Ok(value) = HeaderValue::from_str(&timeout_value(wait))
        {
            headers.insert("grpc-timeout", value);
        }
        let mut requests = self.requests.clone().ready().await.map_err(broken)?;
        let (answer, sending) = requests.send_request(request, false).map_err(broken)?;
        let incoming = Incoming {
            state: State::Waiting(answer),
            frames: Deframer::new(self.target.message_limit),
        };
        Ok((sending, incoming))
    }
}

/// `grpc-timeout`: at most eight digits and a unit; rounded up, never to nothing.
fn timeout_value(wait: Duration) -> String {
    let ms = wait.as_nanos().div_ceil(1_000_000).max(1);
    if ms < 100_000_000 {
        return format!("{ms}m");
    }
    format!("{}S", wait.as_secs().min(99_999_999))
}

enum State {
    Waiting(ResponseFuture),
    Body(RecvStream),
    Ended(Option<Status>),
}

/// The server's half of a call.
struct Incoming {
    state: State,
    frames: Deframer,
}

impl Incoming {
    /// The next message; `None` after the last one, when the status is OK. Safe to drop and call
    /// again: nothing is lost between.
    async fn next(&mut self) -> Result<Option<&[u8]>, CallError> {
        loop {
            if self.frames.has_next().map_err(CallError::misframed)? {
                return self.frames.next().map_err(CallError::misframed);
            }
            match &mut self.state {
                State::Waiting(answer) => {
                    let answer = answer.await;
                    // A head that is refused ends the call.
                    self.state = State::Ended(None);
                    self.state = head(answer.map_err(broken)?)?;
                }
                State::Body(body) => match body.data().await {
                    Some(Ok(piece)) => {
                        let _ = body.flow_control().release_capacity(piece.len());
                        self.frames.push(&piece);
                    }
                    Some(Err(error)) => return Err(broken(error)),
                    None => {
                        let trailers = body.trailers().await.map_err(broken)?;
                        let status = trailers.as_ref().and_then(Status::from_headers);
                        self.state = State::Ended(Some(status.unwrap_or_else(|| {
                            Status::new(Code::Unknown, "the answer ended without a status")
                        })));
                    }
                },
                State::Ended(status) => {
                    return match status.take() {
                        Some(status) if status.code != Code::Ok => Err(CallError::answer(status)),
                        Some(_) if !self.frames.is_empty() => Err(CallError::answer(Status::new(
                            Code::Internal,
                            "the answer ended in the middle of a message",
                        ))),
                        _ => Ok(None),
                    };
                }
            }
        }
    }
}

fn broken(error: h2::Error) -> CallError {
    CallError::new(Phase::Answer, Cause::Http2(error))
}

/// Judges the answer's head.
fn head(answer: http::Response<RecvStream>) -> Result<State, CallError> {
    let (head, body) = answer.into_parts();
    if let Some(status) = Status::from_headers(&head.headers) {
        // Trailers-only: the head was all.
        return Ok(State::Ended(Some(status)));
    }
    if head.status != http::StatusCode::OK {
        let message = format!(
            "HTTP status {} instead of a gRPC answer",
            head.status.as_u16()
        );
        return Err(CallError::answer(Status::new(
            Code::from_http(head.status),
            message,
        )));
    }
    if !is_grpc(&head.headers) {
        let message = "the answer's content type is not application/grpc";
        return Err(CallError::answer(Status::new(Code::Unknown, message)));
    }
    Ok(State::Body(body))
}

/// The half of a stream that sends. Dropping both halves cancels the call (RST_STREAM CANCEL).
pub struct Sender<Q> {
    stream: SendStream<Bytes>,
    limit: usize,
    client: Client,
    kind: PhantomData<fn(Q)>,
}

impl<Q: Message> Sender<Q> {
    /// Sends a message, as fast as the server takes it. Not to be dropped half-way: the stream is
    /// then of no more use.
    ///
    /// # Errors
    /// When the stream has ended; the receiving half knows the server's status.
    pub async fn send(&mut self, message: &Q) -> Result<(), CallError> {
        let framed = frame(message, self.limit)
            .map_err(|status| CallError::new(Phase::Request, Cause::Status(status)))?;
        self.send_bytes(framed).await
    }

    /// Says that nothing more will be sent. The receiving half goes on.
    pub fn close(mut self) {
        let _ = self.stream.send_data(Bytes::new(), true);
    }
}

impl<Q> Sender<Q> {
    /// As [`send`](Self::send), with messages that are encoded already, which go together.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_encoded(&mut self, messages: &[Vec<u8>]) -> Result<(), CallError> {
        let framed = frame_encoded(messages, self.limit)
            .map_err(|status| CallError::new(Phase::Request, Cause::Status(status)))?;
        self.send_bytes(framed).await
    }

    async fn send_bytes(&mut self, framed: Bytes) -> Result<(), CallError> {
        match send(&mut self.stream, framed, false).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(CallError::new(
                Phase::Request,
                Cause::Status(Status::new(
                    Code::Cancelled,
                    "the server has ended the stream",
                )),
            )),
            Err(error) => Err(self.client.broken(Phase::Request, error)),
        }
    }
}

/// The half of a stream that receives.
pub struct Receiver<R> {
    incoming: Incoming,
    client: Client,
    deadline: Option<(Instant, Duration)>,
    kind: PhantomData<fn() -> R>,
}

impl<R: Message> Receiver<R> {
    /// The next message; `None` when the server has ended the stream with OK. May be dropped and
    /// called again (in a `select`): nothing is lost.
    ///
    /// # Errors
    /// [`CallError`]: the server's status, or what broke.
    pub async fn next(&mut self) -> Result<Option<R>, CallError> {
        match next_bytes(&mut self.incoming, &self.client, self.deadline).await? {
            None => Ok(None),
            Some(message) => decode(message, self.client.target.message_limit)
                .map(Some)
                .map_err(|error| CallError::new(Phase::Answer, Cause::Decode(error))),
        }
    }
}

async fn next_bytes<'a>(
    incoming: &'a mut Incoming,
    client: &Client,
    deadline: Option<(Instant, Duration)>,
) -> Result<Option<&'a [u8]>, CallError> {
    let next = rt::select(incoming.next(), client.silence());
    let next = match deadline {
        None => next.await,
        Some((deadline, wait)) => rt::timeout_at(deadline, next)
            .await
            .map_err(|_| CallError::new(Phase::Answer, Cause::TimedOut(wait)))?,
    };
    match next {
        rt::Either::Left(Err(CallError {
            phase,
            cause: Cause::Http2(error),
        })) => Err(client.broken(phase, error)),
        rt::Either::Left(result) => result,
        rt::Either::Right(error) => Err(error),
    }
}
