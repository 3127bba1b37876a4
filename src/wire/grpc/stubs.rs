//! Lets the clients and servers that proto-gen makes of services stand on this gRPC.
use std::future::Future;
use std::time::Duration;

use proto_gen::codec::{Message, Method};
use proto_gen::stub::{Channel, Registry};

use super::client::{self, CallError, Client};
use super::server::{self, Context, Router};
use super::status::Status;

impl Channel for Client {
    type Error = CallError;
    type Sender<Q: Message + 'static> = client::Sender<Q>;
    type Receiver<R: Message + 'static> = client::Receiver<R>;

    fn unary<Q: Message + 'static, R: Message + 'static>(
        &self,
        method: &Method<Q, R>,
        request: &Q,
        wait: Duration,
    ) -> impl Future<Output = Result<R, CallError>> {
        Client::unary(self, method, request, wait)
    }

    fn stream<Q: Message + 'static, R: Message + 'static>(
        &self,
        method: &Method<Q, R>,
        wait: Option<Duration>,
    ) -> impl Future<Output = Result<(client::Sender<Q>, client::Receiver<R>), CallError>> {
        Client::stream(self, method, wait)
    }
}

impl Registry for Router {
    type Context = Context;
    type Status = Status;
    type Receiver<Q: Message + 'static> = server::Receiver<Q>;
    type Sender<R: Message + 'static> = server::Sender<R>;

    fn unary<Q, R, F, A>(&mut self, method: &Method<Q, R>, handler: F)
    where
        Q: Message + 'static,
        R: Message + 'static,
        F: Fn(Context, Q) -> A + 'static,
        A: Future<Output = Result<R, Status>> + 'static,
    {
        Router::unary(self, method, handler);
    }

    fn stream<Q, R, F, A>(&mut self, method: &Method<Q, R>, handler: F)
    where
        Q: Message + 'static,
        R: Message + 'static,
        F: Fn(Context, server::Receiver<Q>, server::Sender<R>) -> A + 'static,
        A: Future<Output = Result<(), Status>> + 'static,
    {
        Router::bidi(self, method, handler);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::proto::{
        GatewayFrame, GatewayFrameKind, Heartbeat, JoinDeferral, JoinRequest, JoinResponse,
        JoinResponseOutcome, NodeFrame, NodeFrameKind, RenewRequest, join_service, session_service,
    };
    use crate::rt;
    use crate::wire::grpc::Code;
    use crate::wire::grpc::client::Endpoint;
    use crate::wire::grpc::server::{Limits, Peer, serve};

    struct Gateway;

    impl join_service::Server<Router> for Gateway {
        async fn join(&self, _: Context, request: JoinRequest) -> Result<JoinResponse, Status> {
            if request.attestor.is_empty() {
                return Err(Status::new(Code::InvalidArgument, "no attestor"));
            }
            Ok(JoinResponse {
                outcome: Some(JoinResponseOutcome::Deferral(JoinDeferral {
                    retry_after_ms: 7,
                    reason: request.attestor,
                })),
            })
        }

        async fn renew(&self, _: Context, _: RenewRequest) -> Result<JoinResponse, Status> {
            Err(Status::new(Code::Unimplemented, "no renewals here"))
        }
    }

    impl session_service::Server<Router> for Gateway {
        async fn session(
            &self,
            _: Context,
            mut requests: server::Receiver<NodeFrame>,
            mut responses: server::Sender<GatewayFrame>,
        ) -> Result<(), Status> {
            while let Some(frame) = requests.next().await? {
                let Some(NodeFrameKind::Heartbeat(heartbeat)) = frame.kind else {
                    return Err(Status::new(Code::InvalidArgument, "no heartbeat"));
                };
                let kind = Some(GatewayFrameKind::Heartbeat(heartbeat));
                responses.send(&GatewayFrame { kind }).await?;
            }
            Ok(())
        }
    }

    #[test]
    fn a_generated_client_calls_a_generated_server() {
        rt::block_on(async {
            let listener = rt::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
            let mut router = Router::new();
            join_service::serve(&mut router, Rc::new(Gateway));
            session_service::serve(&mut router, Rc::new(Gateway));
            let router = Rc::new(router);
            rt::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let _ = serve(stream, Peer::default(), router, Limits::default()).await;
            });
            let wait = Duration::from_secs(10);
            let channel = Client::connect(&endpoint).await.unwrap();

            let joins = join_service::Client(channel.clone());
            let error = joins.join(&JoinRequest::default(), wait).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            let request = JoinRequest {
                attestor: "join-token".to_owned(),
                ..JoinRequest::default()
            };
            let response = joins.join(&request, wait).await.unwrap();
            let Some(JoinResponseOutcome::Deferral(deferral)) = response.outcome else {
                panic!("{response:?}");
            };
            assert_eq!(deferral.reason, "join-token");

            let sessions = session_service::Client(channel);
            let (mut sender, mut receiver) = sessions.session(Some(wait)).await.unwrap();
            for sequence in 1..4 {
                let heartbeat = Heartbeat {
                    sequence,
                    time_ms: -1,
                };
                let kind = Some(NodeFrameKind::Heartbeat(heartbeat.clone()));
                sender.send(&NodeFrame { kind }).await.unwrap();
                let frame = receiver.next().await.unwrap().unwrap();
                assert_eq!(frame.kind, Some(GatewayFrameKind::Heartbeat(heartbeat)));
            }
            sender.close();
            assert_eq!(receiver.next().await.unwrap(), None);
        });
    }
}
