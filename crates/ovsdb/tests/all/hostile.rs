//! The client with servers that lie, stall or send garbage: it reports the error, disconnects and
//! tries again.

use std::time::Duration;

use ovsdb::wire::{self, Framer, Message};
use ovsdb::{Client, Config, Event, Events, MonitorTable, Remote};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);

struct Fake {
    listener: UnixListener,
    _directory: TempDir,
    config: Config,
}

impl Fake {
    fn new() -> Fake {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("sock");
        let mut config = Config::new(Remote::Unix(path.clone()), "D");
        let columns = vec!["name".to_owned()];
        config.monitor = vec![MonitorTable {
            table: "T".into(),
            columns,
            quiet: vec![],
        }];
        config.lock = Some("l".into());
        config.min_backoff = Duration::from_millis(10);
        config.max_backoff = Duration::from_millis(10);
        Fake {
            listener: UnixListener::bind(path).unwrap(),
            _directory: directory,
            config,
        }
    }

    async fn accept(&self) -> Peer {
        let (stream, _) = timeout(LIMIT, self.listener.accept())
            .await
            .expect("no connection")
            .unwrap();
        Peer {
            stream,
            framer: Framer::default(),
        }
    }
}

struct Peer {
    stream: UnixStream,
    framer: Framer,
}

impl Peer {
    async fn send(&mut self, text: &str) {
        // The client may have disconnected already, which some tests are about.
        let _ = self.stream.write_all(text.as_bytes()).await;
    }

    /// Returns the next message; None if the client disconnected.
    async fn receive(&mut self) -> Option<Message> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(frame) = self.framer.next_frame().unwrap() {
                return Some(wire::decode(frame).unwrap());
            }
            let count = timeout(LIMIT, self.stream.read(&mut chunk))
                .await
                .expect("the client is silent");
            match count {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.framer.push(&chunk[..count]),
            }
        }
    }

    async fn answer(&mut self, method: &str, result: Value) {
        let Some(Message::Request {
            id, method: asked, ..
        }) = self.receive().await
        else {
            panic!("no {method}")
        };
        assert_eq!(asked, method);
        self.send(&json!({"id": id, "result": result, "error": null}).to_string())
            .await;
    }

    /// Answers like a well-behaved server until the connection is set up.
    async fn set_up(&mut self) {
        self.answer("list_dbs", json!(["D"])).await;
        let schema =
            json!({"name": "D", "tables": {"T": {"columns": {"name": {"type": "string"}}}}});
        self.answer("get_schema", schema).await;
        self.answer("lock", json!({"locked": true})).await;
        self.answer("monitor", json!({})).await;
    }
}

async fn expect(events: &mut Events, wanted: Event) {
    while timeout(LIMIT, events.next())
        .await
        .expect("no event")
        .expect("the client ended")
        != wanted
    {}
}

async fn error(client: &Client) -> String {
    let find = async {
        loop {
            match client.last_error() {
                Some(error) => return error,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    timeout(LIMIT, find).await.expect("no error is told")
}

#[tokio::test]
async fn nonsense_after_the_set_up_ends_the_connection_with_a_reason_and_a_new_one_comes() {
    let row = "00000000-0000-0000-0000-000000000001";
    let update = |updates: Value| {
        json!({"id": null, "method": "update", "params": ["replica", updates]}).to_string()
    };
    let cases = [
        ("hello".to_owned(), "begin with"),
        ("{\"id\":1,}".to_owned(), "bad JSON"),
        ("{\"id\":null,\"result\":[]}".to_owned(), "without an id"),
        (
            "{\"id\":999,\"result\":[],\"error\":null}".to_owned(),
            "no request",
        ),
        (
            "{\"id\":\"x\",\"result\":[],\"error\":null}".to_owned(),
            "no request",
        ),
        (
            format!("{}{}", "{\"a\":".repeat(500), "}".repeat(500)),
            "bad JSON",
        ),
        (update(json!({"T": {row: {"new": {"name": 3}}}})), "T.name"),
        (
            update(json!({"T": {row: {"new": {"colour": "x"}}}})),
            "T.colour",
        ),
        (update(json!({"U": {}})), "no such table"),
        (update(json!({"T": {"zz": {}}})), "not a UUID"),
        (update(json!(null)), "not an object"),
        (
            json!({"id": null, "method": "gossip", "params": []}).to_string(),
            "unexpected notification",
        ),
        (
            json!({"id": null, "method": "stolen", "params": ["other"]}).to_string(),
            "unexpected notification",
        ),
    ];
    let fake = Fake::new();
    let (client, mut events) = ovsdb::client::connect(fake.config.clone());
    for (text, reason) in cases {
        let mut peer = fake.accept().await;
        peer.set_up().await;
        expect(&mut events, Event::Connected).await;
        peer.send(&text).await;
        expect(&mut events, Event::Disconnected).await;
        let error = error(&client).await;
        assert!(error.contains(reason), "{text:.100}: {error}");
        assert!(error.len() < 400, "{error}");
        assert!(!client.is_connected() && !client.has_lock());
        assert_eq!(peer.receive().await, None);
    }
    let mut peer = fake.accept().await;
    peer.set_up().await;
    expect(&mut events, Event::Connected).await;
}

#[tokio::test]
async fn nonsense_during_the_set_up_is_an_error_too() {
    for (list, schema, reason) in [
        (json!(3), json!({}), "no database D"),
        (
            json!(["E"]),
            json!({}),
            "no database D on the server (it has: E)",
        ),
        (json!(["D"]), json!({}), "bad schema"),
        (
            json!(["D"]),
            json!({"name": "D", "tables": {"T": {"columns": {"name": {"type": "colour"}}}}}),
            "T.name",
        ),
    ] {
        let fake = Fake::new();
        let (client, _events) = ovsdb::client::connect(fake.config.clone());
        let mut peer = fake.accept().await;
        peer.answer("list_dbs", list).await;
        if reason.starts_with("bad") || reason.starts_with('T') {
            peer.answer("get_schema", schema).await;
        }
        let error = error(&client).await;
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn echo_requests_are_answered_and_unknown_ones_refused() {
    let fake = Fake::new();
    let (_client, mut events) = ovsdb::client::connect(fake.config.clone());
    let mut peer = fake.accept().await;
    peer.set_up().await;
    expect(&mut events, Event::Connected).await;
    peer.send(&json!({"id": "echo", "method": "echo", "params": [1, "x"]}).to_string())
        .await;
    let answer = peer.receive().await.unwrap();
    assert_eq!(
        answer,
        Message::Response {
            id: json!("echo"),
            result: Ok(json!([1, "x"]))
        }
    );
    peer.send(&json!({"id": 4, "method": "sing", "params": []}).to_string())
        .await;
    assert!(matches!(
        peer.receive().await,
        Some(Message::Response { result: Err(_), .. })
    ));
}

#[tokio::test]
async fn a_silent_server_is_probed_and_then_left() {
    let mut fake = Fake::new();
    fake.config.probe_interval = Duration::from_millis(30);
    fake.config.answer_limit = Duration::from_millis(300);
    let (client, mut events) = ovsdb::client::connect(fake.config.clone());
    let mut peer = fake.accept().await;
    peer.set_up().await;
    expect(&mut events, Event::Connected).await;
    let Some(Message::Request { id, method, .. }) = peer.receive().await else {
        panic!("no probe")
    };
    assert_eq!(method, "echo");
    peer.send(&json!({"id": id, "result": [], "error": null}).to_string())
        .await;
    assert!(
        matches!(peer.receive().await, Some(Message::Request { method, .. }) if method == "echo")
    );
    expect(&mut events, Event::Disconnected).await;
    assert!(error(&client).await.contains("probe"));
}

#[tokio::test]
async fn a_server_that_never_answers_is_left_during_the_set_up() {
    let mut fake = Fake::new();
    fake.config.answer_limit = Duration::from_millis(100);
    let (client, _events) = ovsdb::client::connect(fake.config.clone());
    let _first = fake.accept().await;
    let _second = fake.accept().await;
    assert!(error(&client).await.contains("no response"));
}

#[tokio::test]
async fn a_request_in_flight_when_the_connection_breaks_gets_an_answer() {
    let fake = Fake::new();
    let (client, mut events) = ovsdb::client::connect(fake.config.clone());
    let mut peer = fake.accept().await;
    peer.set_up().await;
    expect(&mut events, Event::Connected).await;
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.list_dbs().await }
    });
    assert!(
        matches!(peer.receive().await, Some(Message::Request { method, .. }) if method == "list_dbs")
    );
    drop(peer);
    let answer = timeout(LIMIT, asking).await.expect("no answer").unwrap();
    assert_eq!(answer, Err(ovsdb::ClientError::Broken));
}
