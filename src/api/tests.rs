//! The client against servers whose every byte is planned.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{ApiError, Client, Deadlines, PromptRequest};
use crate::measure::{FailureKind, Outcome, RequestRecord};
use crate::plan::Endpoint;
use crate::units::Tokens;

const SSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// A server that reads one request and then writes these parts with pauses (in ms) before each; with
/// `hold` it keeps the connection open afterwards.
async fn serve(parts: Vec<(u64, Vec<u8>)>, hold: bool) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 64 * 1024];
        let _ = socket.read(&mut request).await.unwrap();
        for (pause, part) in parts {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if socket.write_all(&part).await.is_err() {
                return;
            }
            socket.flush().await.unwrap();
        }
        if hold {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    });
    Client::new(&format!("http://{address}/v1/"), None).unwrap()
}

async fn ask(client: &Client) -> RequestRecord {
    let request = PromptRequest::new("m".into(), Endpoint::Chat, "hi".into(), Tokens::new(8));
    let deadlines = Deadlines { total: Duration::from_secs(5), idle: Duration::from_millis(300) };
    client.stream(&request, deadlines).await
}

fn kind(record: &RequestRecord) -> Option<FailureKind> {
    match &record.outcome {
        Outcome::Ok => None,
        Outcome::Failed { kind, .. } => Some(*kind),
    }
}

fn parts(texts: &[&str]) -> Vec<(u64, Vec<u8>)> {
    texts.iter().map(|text| (0, text.as_bytes().to_vec())).collect()
}

#[tokio::test]
async fn a_stream_of_vllm_in_awkward_pieces() {
    let all = format!(
        "{SSE}data: {{\"choices\":[{{\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}}}]}}\n\n: ping\n\n\
         data: {{\"choices\":[{{\"delta\":{{\"reasoning\":\"hm\"}}}}]}}\r\n\r\n\
         data: {{\"choices\":[{{\"delta\":{{\"content\":\"é漢\"}},\"finish_reason\":\"stop\"}}]}}\n\n\
         data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":2}}}}\n\ndata: [DONE]\n\n"
    );
    // Two-byte pieces after the head: every character, line end and event is split somewhere.
    let (head, tail) = all.as_bytes().split_at(SSE.len());
    let mut pieces = vec![(0, head.to_vec())];
    pieces.extend(tail.chunks(2).map(|piece| (0, piece.to_vec())));
    let record = ask(&serve(pieces, true).await).await;
    assert_eq!(kind(&record), None, "{record:?}");
    assert_eq!((record.text.as_str(), record.reasoning.as_str()), ("é漢", "hm"));
    assert_eq!(record.output_tokens(), Some(2));
    assert!(
        record.first_event_ms <= record.first_token_ms && record.first_token_ms <= record.first_answer_ms
    );
}

#[tokio::test]
async fn every_fault_ends_in_a_record_of_its_kind() {
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\ndata: [DONE]\n\n";
    let table = [
        (parts(&[SSE, token]), false, FailureKind::CutStream),
        (parts(&[SSE, token, "data: {\"cho"]), false, FailureKind::CutStream),
        (parts(&[SSE, token]), true, FailureKind::Stalled),
        (parts(&[]), true, FailureKind::Stalled),
        (parts(&[SSE, token, error]), false, FailureKind::ErrorInStream),
        (parts(&[SSE, "data: <html>\n\n"]), false, FailureKind::BadProtocol),
        (parts(&[SSE, "<html>hello</html>"]), false, FailureKind::CutStream),
        (
            parts(&["HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"]),
            false,
            FailureKind::HttpStatus,
        ),
        (parts(&["this is not http\r\n\r\n"]), false, FailureKind::Broken),
        (vec![(0, SSE.as_bytes().to_vec()), (0, vec![b'x'; 9 << 20])], false, FailureKind::BadProtocol),
    ];
    for (index, (answer, hold, expected)) in table.into_iter().enumerate() {
        let record = ask(&serve(answer, hold).await).await;
        assert_eq!(kind(&record), Some(expected), "case {index}: {record:?}");
    }
    let nobody = Client::new("http://127.0.0.1:9", None).unwrap();
    assert_eq!(kind(&ask(&nobody).await), Some(FailureKind::Refused));
}

#[tokio::test]
async fn the_servers_own_words_are_kept() {
    let body = r#"{"error":{"message":"maximum context length is 8","code":400}}"#;
    let answer = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let record = ask(&serve(parts(&[&answer]), false).await).await;
    assert_eq!(record.failure_text().unwrap(), "HTTP 400: maximum context length is 8");
}

#[tokio::test]
async fn a_slow_drip_ends_at_the_total_deadline() {
    let mut drip = vec![(0, SSE.as_bytes().to_vec())];
    drip.extend((0..1_000).map(|_| (50, b": keep-alive\n\n".to_vec())));
    let client = serve(drip, true).await;
    let request = PromptRequest::new("m".into(), Endpoint::Completions, "hi".into(), Tokens::new(8));
    let deadlines = Deadlines { total: Duration::from_millis(500), idle: Duration::from_millis(300) };
    assert_eq!(kind(&client.stream(&request, deadlines).await), Some(FailureKind::TimedOut));
}

#[tokio::test]
async fn short_answers_are_bounded_and_keys_are_not_shown() {
    let client = serve(parts(&["HTTP/1.1 200 OK\r\n\r\n{\"data\":[{\"id\":\"m\"}]}"]), false).await;
    assert_eq!(client.models(Duration::from_secs(2)).await.unwrap()[0].id, "m");
    let client = serve(parts(&[]), true).await;
    assert!(matches!(client.health(Duration::from_millis(100)).await, Err(ApiError::TimedOut { .. })));
    let endless = vec![(0, b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), (0, vec![b'x'; 17 << 20])];
    let client = serve(endless, true).await;
    assert!(matches!(client.metrics(Duration::from_secs(5)).await, Err(ApiError::BadAnswer { .. })));
    let client = Client::new("localhost:8000/v1", Some("sk-secret")).unwrap();
    assert_eq!(client.base(), "http://localhost:8000");
    assert!(!format!("{client:?}").contains("secret"));
    for bad in ["ftp://x", "http://", "http://user:sk-secret@host", "http://[::1"] {
        let error = Client::new(bad, None).unwrap_err().to_string();
        assert!(!error.contains("sk-secret"), "{error}");
    }
    assert!(matches!(Client::new("http://x", Some("a\nb")), Err(ApiError::InvalidKey)));
}
