//! What kdeploy relies on of an engine, asserted on every engine, real or fake: a fake that drifts from
//! vLLM fails here, and so does a vLLM that changed.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use serde_json::{Value, json};

/// The question of `profiles/quickstart.toml`, whose answer SmolLM2-135M is known for.
const QUESTION: &str = "What is the capital of France? Answer in one sentence.";
/// Longest silence of a server that was asked something.
const SILENCE: Duration = Duration::from_secs(120);

/// Asserts all of it on a deployment that serves.
pub fn check(record: &Value) {
    let server = Server {
        port: u16::try_from(record["plan"]["port"].as_u64().expect("a port")).expect("a port"),
        model: record["plan"]["model"]["served_name"].as_str().expect("a name").to_owned(),
    };
    check_tree(record);
    check_files(record);
    check_short_answers(&server, record);
    check_chat_stream(&server);
    check_completion_stream(&server);
    check_whole_answers(&server);
    check_refusals(&server);
}

/// One HTTP/1.1 server on loopback.
struct Server {
    port: u16,
    model: String,
}

impl Server {
    /// Sends one request on its own connection; status and body.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_read_timeout(Some(SILENCE)).expect("a limit");
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8(answer).expect("UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        (status, if chunked { unchunk(body) } else { body.to_owned() })
    }

    #[track_caller]
    fn ask_json(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, text) = self.ask(method, path, body);
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}")))
    }

    fn chat(&self, prompt: &str, max_tokens: u32, stream: bool) -> Value {
        let messages = json!([{"role": "user", "content": prompt}]);
        with_stream(json!({"model": self.model, "messages": messages}), max_tokens, stream)
    }

    fn completion(&self, prompt: &str, max_tokens: u32, stream: bool) -> Value {
        with_stream(json!({"model": self.model, "prompt": prompt}), max_tokens, stream)
    }

    /// Events of a stream; asserts that it ends with `[DONE]`.
    #[track_caller]
    fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, text) = self.ask("POST", path, Some(body));
        assert_eq!(status, 200, "{text}");
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{text}");
        let parse = |event: &str| serde_json::from_str(event.strip_prefix("data: ").expect(event));
        events.into_iter().map(|event| parse(event).expect(event)).collect()
    }
}

fn with_stream(mut body: Value, max_tokens: u32, stream: bool) -> Value {
    body["max_tokens"] = max_tokens.into();
    body["temperature"] = 0.into();
    if stream {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// The body of a chunked answer.
fn unchunk(mut rest: &str) -> String {
    let mut out = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
        out += &after[..size];
        rest = after[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    out
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

/// Asserts that these keys are there; engines may add others.
#[track_caller]
fn assert_keys(value: &Value, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|key| !keys(value).contains(**key)).collect();
    assert!(missing.is_empty(), "{missing:?} are missing: {value:#}");
}

/// Main process → resource tracker and EngineCore → Worker, all in the main process's session and group.
fn check_tree(record: &Value) {
    let main = record["main"]["pid"].as_i64().expect("a main process");
    let stat = |pid: i64| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
        let (head, rest) = text.rsplit_once(')').expect("a name");
        let numbers: Vec<i64> =
            rest.split_whitespace().skip(1).take(3).map(|n| n.parse().expect(n)).collect();
        (head.split_once('(').expect("a name").1.to_owned(), numbers)
    };
    let find = |wanted: &str| {
        let members = record["members"].as_array().expect("members").iter();
        let pids = members.map(|member| member["pid"].as_i64().expect("a pid"));
        let holds = |pid: &i64| {
            let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&cmdline).replace('\0', " ").contains(wanted)
        };
        pids.filter(holds).max().unwrap_or_else(|| panic!("no {wanted}: {record:#}"))
    };
    let tracker = find("from multiprocessing.resource_tracker import main");
    let core = find("VLLM::EngineCore");
    let worker = find("VLLM::Worker");
    // What `comm` shows is the title's first 15 characters.
    for (pid, parent, comm) in
        [(tracker, main, None), (core, main, Some("VLLM::EngineCor")), (worker, core, Some("VLLM::Worker"))]
    {
        let (name, numbers) = stat(pid);
        assert_eq!(numbers, [parent, main, main], "parent, group, session of {name}");
        assert!(comm.is_none_or(|comm| name == comm), "{name}");
    }
    assert_eq!(stat(main).1[1..], [main, main], "the main process leads group and session");
}

/// Shared memory and sockets have the names that cleaning expects, and lie where it looks.
fn check_files(record: &Value) {
    let names: Vec<&str> = record["shm"]
        .as_array()
        .expect("shm")
        .iter()
        .map(|object| object["name"].as_str().expect("a name"))
        .collect();
    let is_ring = |name: &&&str| {
        name.strip_prefix("psm_")
            .is_some_and(|hex| hex.len() == 8 && hex.chars().all(|c| c.is_ascii_hexdigit()))
    };
    assert!(names.iter().filter(is_ring).count() >= 2, "request and response ring: {names:?}");
    let runtime = record["runtime"]["path"].as_str().expect("a runtime directory");
    let sockets = std::fs::read_dir(runtime).expect("it is there").flatten().filter(|entry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        let is_uuid = name.len() == 36 && name.chars().filter(|c| *c == '-').count() == 4;
        is_uuid && entry.file_type().is_ok_and(|kind| kind.is_socket())
    });
    assert!(sockets.count() >= 3, "sockets in {runtime}");
}

fn check_short_answers(server: &Server, record: &Value) {
    assert_eq!(server.ask("GET", "/health", None), (200, String::new()));
    let (status, version) = server.ask_json("GET", "/version", None);
    assert!(
        status == 200 && version["version"].as_str().is_some_and(|v| v.starts_with("0.32.0")),
        "{version}"
    );
    let (status, models) = server.ask_json("GET", "/v1/models", None);
    assert_eq!((status, &models["object"]), (200, &"list".into()), "{models:#}");
    let model = &models["data"][0];
    // Exactly these: ModelCard in vllm/entrypoints/serve/engine/protocol.py of 0.32.0.
    let card = ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"];
    assert_eq!(keys(model), BTreeSet::from(card), "{models:#}");
    assert_eq!((&model["id"], &model["owned_by"]), (&server.model.as_str().into(), &"vllm".into()));
    assert_eq!(model["max_model_len"], record["plan"]["context"], "{models:#}");
    assert_eq!(model["root"], record["plan"]["model"]["path"], "{models:#}");
    let (status, metrics) = server.ask("GET", "/metrics", None);
    assert_eq!(status, 200);
    for name in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
    ] {
        let labels = |line: &str| line.starts_with(&format!("{name}{{")) && line.contains("model_name=");
        assert!(metrics.lines().any(labels), "{name} is not in\n{metrics}");
    }
    assert!(metrics.contains("finished_reason=\"stop\""), "{metrics}");
}

/// The role first with an empty content, then text, then a reason, then usage without choices.
fn check_chat_stream(server: &Server) {
    let events = server.events("/v1/chat/completions", &server.chat(QUESTION, 32, true));
    let texts = check_stream(&events, "chat.completion.chunk", |choice| choice["delta"]["content"].as_str());
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}), "{events:#?}");
    assert_eq!(texts.concat(), "The capital of France is Paris.");
    let usage = &events[events.len() - 1]["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&42.into(), &8.into()), "{usage}");
}

fn check_completion_stream(server: &Server) {
    let events = server.events("/v1/completions", &server.completion("The capital of France is", 4, true));
    let texts = check_stream(&events, "text_completion", |choice| choice["text"].as_str());
    assert!(texts.concat().starts_with(" Paris"), "{texts:?}");
    let last = &events[events.len() - 2]["choices"][0];
    assert_eq!(last["finish_reason"], "length", "{events:#?}");
    assert_eq!(events[events.len() - 1]["usage"]["completion_tokens"], 4);
}

/// What every stream has in common; returns its texts.
#[track_caller]
fn check_stream<'a>(
    events: &'a [Value],
    object: &str,
    text: impl Fn(&'a Value) -> Option<&'a str>,
) -> Vec<&'a str> {
    let (usage, chunks) = events.split_last().expect("events");
    assert_eq!(usage["choices"], json!([]), "usage comes last and alone: {usage:#}");
    assert_keys(&usage["usage"], &["prompt_tokens", "completion_tokens", "total_tokens"]);
    for event in events {
        assert_keys(event, &["id", "object", "created", "model", "choices"]);
        assert_eq!((&event["id"], &event["object"]), (&events[0]["id"], &object.into()), "{event:#}");
    }
    let (last, before) = chunks.split_last().expect("chunks");
    assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()), "{before:#?}");
    assert!(last["choices"][0]["finish_reason"].is_string(), "{last:#}");
    chunks.iter().filter_map(|chunk| text(&chunk["choices"][0])).collect()
}

fn check_whole_answers(server: &Server) {
    let body = server.chat(QUESTION, 32, false);
    let (status, answer) = server.ask_json("POST", "/v1/chat/completions", Some(&body));
    assert_eq!((status, &answer["object"]), (200, &"chat.completion".into()), "{answer:#}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "The capital of France is Paris.", "{answer:#}");
    assert_eq!((&choice["message"]["role"], &choice["finish_reason"]), (&"assistant".into(), &"stop".into()));
    assert_eq!(answer["usage"]["completion_tokens"], 8, "the end mark is a token too: {answer:#}");

    let body = server.completion("The capital of France is", 3, false);
    let (status, answer) = server.ask_json("POST", "/v1/completions", Some(&body));
    assert_eq!((status, &answer["object"]), (200, &"text_completion".into()), "{answer:#}");
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().is_some_and(|text| text.starts_with(" Paris")), "{answer:#}");
    assert_eq!(
        (&choice["finish_reason"], &answer["usage"]["completion_tokens"]),
        (&"length".into(), &3.into())
    );
}

fn check_refusals(server: &Server) {
    let other = json!({"model": "nobody", "messages": [{"role": "user", "content": "x"}]});
    let (status, refusal) = server.ask_json("POST", "/v1/chat/completions", Some(&other));
    assert_eq!(status, 404, "{refusal}");
    assert_keys(&refusal["error"], &["message", "type", "param", "code"]);
    assert_eq!(refusal["error"]["type"], "NotFoundError");
    let words = format!("The model `nobody` does not exist. Valid aliases: {}.", server.model);
    assert_eq!(refusal["error"]["message"], words);
    assert_eq!(server.ask_json("GET", "/nowhere", None).0, 404);
    let none = json!({"model": server.model, "messages": []});
    assert_eq!(server.ask_json("POST", "/v1/chat/completions", Some(&none)).0, 400);
}
