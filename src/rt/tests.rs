//! The loop, its timers, its channels and its sockets.
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(10);

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn tasks_run_and_give_their_value() {
    block_on(async {
        let task = spawn(async {
            yield_now().await;
            7
        });
        assert!(!task.is_finished());
        assert_eq!(task.await, Some(7));
        let many: Vec<_> = (0..1000).map(|n| spawn(async move { n })).collect();
        for (n, task) in many.into_iter().enumerate() {
            assert_eq!(task.await, Some(n));
        }
    });
}

#[test]
fn a_cancelled_task_is_dropped_and_says_so() {
    block_on(async {
        let marker = Rc::new(());
        let held = marker.clone();
        let task = spawn(async move {
            let _held = held;
            pending::<()>().await;
        });
        yield_now().await;
        task.cancel();
        assert_eq!(task.await, None);
        assert_eq!(Rc::strong_count(&marker), 1);
    });
}

#[test]
fn levels_of_futures_hold_each_future_once() {
    let held = [7_u8; 1000];
    let inner = async move {
        yield_now().await;
        held.len()
    };
    let alone = size_of_val(&inner);
    let outer = timeout(
        LONG,
        select(select(inner, pending::<()>()), pending::<()>()),
    );
    assert!(size_of_val(&outer) < alone + 100);
    let first = Ok(Either::Left(Either::Left(1000)));
    assert_eq!(block_on(outer), first);
}

#[test]
fn tasks_left_over_are_dropped_with_what_they_own() {
    let marker = Rc::new(());
    let held = marker.clone();
    block_on(async move {
        let listener = TcpListener::bind(local()).unwrap();
        spawn(async move {
            let _held = (held, sleep(LONG).await);
            let _ = listener.accept().await;
        });
        yield_now().await;
    });
    assert_eq!(Rc::strong_count(&marker), 1);
    // And the thread can have another loop.
    assert_eq!(block_on(async { 1 }), 1);
}

#[test]
fn an_idle_loop_returns_from_epoll_only_for_its_timers() {
    block_on(async {
        let listener = TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = spawn(async move { listener.accept().await.unwrap().0 });
        let client = TcpStream::connect(address).await.unwrap();
        let _server = accepted.await;
        // A time-out that was not needed wakes nobody.
        for _ in 0..100 {
            timeout(SHORT, async {}).await.unwrap();
            let mut waiting = Box::pin(timeout(SHORT, pending::<()>()));
            poll_fn(|cx| {
                assert!(waiting.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        sleep(SHORT * 2).await;
        let before = epoll_returns();
        sleep(SHORT * 6).await;
        assert_eq!(epoll_returns() - before, 1);
        drop(client);
    });
}

#[test]
fn timers_fire_in_order_and_not_early() {
    block_on(async {
        let began = Instant::now();
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30u64, 10, 20, 10]
            .into_iter()
            .map(|ms| {
                let order = order.clone();
                spawn(async move {
                    sleep(Duration::from_millis(ms)).await;
                    assert!(began.elapsed() >= Duration::from_millis(ms));
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(*order.borrow(), [10, 10, 20, 30]);
        assert_eq!(timeout(SHORT, pending::<()>()).await, Err(Elapsed));
        assert!(
            poll_fn(|cx| Poll::Ready(Box::pin(sleep(Duration::MAX)).as_mut().poll(cx)))
                .await
                .is_pending()
        );
    });
}

#[test]
fn wake_ups_on_the_loops_thread_do_not_go_through_the_kernel() {
    block_on(async {
        let before = epoll_returns();
        let (sender, mut receiver) = channel(1);
        let task = spawn(async move {
            for n in 0..1000 {
                sender.send(n).await.unwrap();
            }
        });
        for n in 0..1000 {
            assert_eq!(receiver.recv().await, Some(n));
        }
        task.await;
        // The loop looks at the sockets now and then while it is busy; no wake-up adds to that.
        assert!(epoll_returns() - before < 100);
    });
}

#[test]
fn a_thread_feeds_the_loop_and_a_full_queue_stops_it() {
    block_on(async {
        let (sender, mut receiver) = channel(4);
        let thread = thread::spawn(move || {
            for n in 0..10_000 {
                sender.send_blocking(n).unwrap();
            }
        });
        for n in 0..10_000 {
            assert_eq!(receiver.recv().await, Some(n));
        }
        assert_eq!(receiver.recv().await, None);
        thread.join().unwrap();
        let (sender, receiver) = channel(1);
        sender.try_send(1).unwrap();
        assert_eq!(sender.try_send(2), Err(channel::SendError::Full(2)));
        drop(receiver);
        assert_eq!(sender.send(3).await, Err(channel::SendError::Closed(3)));
        assert!(sender.is_closed());
    });
}

#[test]
fn the_loop_feeds_a_thread() {
    let (sender, receiver) = channel(2);
    let thread = thread::spawn(move || {
        let mut sum = 0;
        while let Some(n) = receiver.recv_blocking() {
            sum += n;
        }
        sum
    });
    block_on(async move {
        for n in 0..1000 {
            sender.send(n).await.unwrap();
        }
    });
    assert_eq!(thread.join().unwrap(), 499_500);
}

#[test]
fn threads_that_wait_together_take_each_value_once_and_all_hear_of_the_end() {
    let (sender, receiver) = channel(1);
    let receiver = Arc::new(receiver);
    let takers: Vec<_> = (0..4)
        .map(|_| {
            let receiver = receiver.clone();
            thread::spawn(move || std::iter::from_fn(|| receiver.recv_blocking()).collect())
        })
        .collect();
    for n in 0..1000 {
        sender.send_blocking(n).unwrap();
    }
    drop(sender);
    let taken = takers.into_iter().map(|taker| taker.join().unwrap());
    let mut taken: Vec<u32> = taken.collect::<Vec<Vec<_>>>().concat();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..1000));
}

#[test]
fn blocking_work_gives_its_value_and_a_panic_is_an_error() {
    block_on(async {
        let name = blocking("work", || thread::current().name().map(str::to_owned)).await;
        assert_eq!(name.unwrap().as_deref(), Some("work"));
        let ticks = Rc::new(Cell::new(0));
        let ticking = ticks.clone();
        spawn(async move {
            loop {
                sleep(Duration::from_millis(5)).await;
                ticking.set(ticking.get() + 1);
            }
        });
        blocking("slow", || thread::sleep(SHORT)).await.unwrap();
        assert!(ticks.get() > 1, "the loop went on");
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let panicked = blocking("panic", || panic!("for the test")).await;
        std::panic::set_hook(hook);
        assert!(matches!(panicked, Err(BlockingError::Panicked)));
    });
}

#[test]
fn bytes_go_both_ways_and_an_end_is_seen() {
    block_on(async {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address.parse().unwrap()) else {
                continue;
            };
            let address = listener.local_addr().unwrap();
            let server = spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
                stream.shutdown().await.unwrap();
            });
            let mut client = TcpStream::connect(address).await.unwrap();
            let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            assert!(got == sent);
            server.await;
        }
    });
}

#[test]
fn a_refused_connection_names_every_address_tried() {
    block_on(async {
        let unused = |address: &str| {
            let listener = TcpListener::bind(address.parse().unwrap()).ok()?;
            listener.local_addr().ok()
        };
        let addresses: Vec<_> = ["127.0.0.1:0", "127.0.0.2:0"]
            .into_iter()
            .filter_map(unused)
            .collect();
        let error = connect_addresses(&addresses, 0, LONG).await.err().unwrap();
        let text = error.to_string();
        for address in addresses {
            assert!(
                text.contains(&format!("{address}: Connection refused")),
                "{text}"
            );
        }
    });
}

#[test]
fn an_address_that_hangs_costs_a_quarter_second() {
    block_on(async {
        let listener = TcpListener::bind(local()).unwrap();
        let good = listener.local_addr().unwrap();
        let hanging = full_listener();
        let began = Instant::now();
        let stream = connect_addresses(&[hanging.1, good], 0, LONG)
            .await
            .unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good);
        let took = began.elapsed();
        assert!(
            took >= Duration::from_millis(250) && took < Duration::from_secs(1),
            "{took:?}"
        );
        // One that is refused costs nothing.
        let closed = {
            let listener = TcpListener::bind(local()).unwrap();
            listener.local_addr().unwrap()
        };
        let began = Instant::now();
        connect_addresses(&[closed, good], 0, LONG).await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(200));
        // And when nothing answers, the error says what was tried.
        let error = connect_addresses(&[hanging.1], 0, SHORT)
            .await
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            format!("no connection within 50 ms ({}: no answer)", hanging.1)
        );
    });
}

/// A listener whose queue is full: the kernel drops further connections' first packets.
fn full_listener() -> (Vec<std::os::fd::OwnedFd>, SocketAddr) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
    };
    let listener = socket();
    bind(&listener, &local()).unwrap();
    listen(&listener, 0).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    let address = SocketAddr::try_from(address).unwrap();
    let mut held = vec![listener];
    for _ in 0..4 {
        let client = socket();
        let _ = rustix::net::connect(&client, &address);
        held.push(client);
    }
    thread::sleep(SHORT);
    (held, address)
}

#[test]
fn names_and_literal_addresses_connect() {
    block_on(async {
        let listener = TcpListener::bind(local()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost"] {
            connect(host, port, LONG).await.unwrap();
        }
        if let Ok(listener) = TcpListener::bind("[::1]:0".parse().unwrap()) {
            let port = listener.local_addr().unwrap().port();
            for host in ["::1", "[::1]"] {
                connect(host, port, LONG).await.unwrap();
            }
        }
        let error = connect("no-such-name.invalid", port, LONG)
            .await
            .err()
            .unwrap();
        assert!(
            matches!(
                &error,
                ConnectError::Lookup { .. } | ConnectError::LookupTimedOut { .. }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("no-such-name.invalid"));
    });
}

#[test]
fn literal_addresses_are_told_from_names() {
    for (host, literal) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("[::1]", true),
        ("[127.0.0.1]", false),
        ("localhost", false),
        ("1.2.3", false),
        ("[::1", false),
    ] {
        assert_eq!(literal_address(host).is_some(), literal, "{host}");
    }
}

#[test]
fn termination_is_a_future() {
    block_on(async {
        let signal = termination().unwrap();
        assert_eq!(timeout(SHORT, pending::<()>()).await, Err(Elapsed));
        // SAFETY: raises a signal that this thread has just blocked, in this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
        assert_eq!(timeout(LONG, signal).await.unwrap(), Signal::Terminate);
        crate::sys::signal::unblock_all();
    });
}

#[test]
fn a_reader_and_a_writer_may_be_different_tasks() {
    block_on(async {
        let listener = TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = spawn(async move { listener.accept().await.unwrap().0 });
        let client = TcpStream::connect(address).await.unwrap();
        let server = accepted.await.unwrap();
        let (mut server_read, mut server_write) = tokio::io::split(server);
        let (mut client_read, mut client_write) = tokio::io::split(client);
        // Fill the pipe so that the writer waits, then let the reader get news the other way.
        let writer = spawn(async move { client_write.write_all(&vec![1; 8_000_000]).await });
        sleep(SHORT).await;
        server_write.write_all(b"hello").await.unwrap();
        let mut hello = [0; 5];
        timeout(LONG, client_read.read_exact(&mut hello))
            .await
            .unwrap()
            .unwrap();
        let drain = async {
            let mut left = 8_000_000;
            let mut piece = vec![0; 65_536];
            while left > 0 {
                left -= server_read.read(&mut piece).await?;
            }
            io::Result::Ok(())
        };
        timeout(LONG, drain).await.unwrap().unwrap();
        writer.await.unwrap().unwrap();
    });
}
