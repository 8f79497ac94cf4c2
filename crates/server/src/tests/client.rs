//! A minimal HTTP client for tests.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Client {
    address: SocketAddr,
    pub key: Option<String>,
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the body; the status must be 200.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Returns status, code and field of an error.
    pub fn error(&self) -> (u16, Option<String>, Option<String>) {
        let error = &self.json()["error"];
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()) && error["type"].is_string(),
            "{self:?}"
        );
        let text = |key: &str| error[key].as_str().map(str::to_owned);
        (self.status, text("code"), text("param"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|l| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)))
            .map(|(_, v)| v)
    }

    /// Returns the objects of an event stream, and whether `[DONE]` ended it.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let done = data.last() == Some(&"[DONE]");
        let parse = |text: &&str| serde_json::from_str(text).unwrap();
        (data.iter().filter(|text| **text != "[DONE]").map(parse).collect(), done)
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, key: None }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Returns the head of a request with a body of this length.
    pub fn head(&self, method: &str, path: &str, length: usize, more: &str) -> String {
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let host = self.address;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{key}{more}\r\n"
        )
    }

    /// Sends a request without reading the answer.
    pub fn send(&self, method: &str, path: &str, body: &[u8], more: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(self.head(method, path, body.len(), more).as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    pub fn request(&self, method: &str, path: &str, body: &[u8], more: &str) -> HttpAnswer {
        read(self.send(method, path, body, more))
    }

    pub fn get(&self, path: &str) -> HttpAnswer {
        self.request("GET", path, b"", "")
    }

    pub fn post(&self, path: &str, body: &Value) -> HttpAnswer {
        self.request("POST", path, body.to_string().as_bytes(), "")
    }
}

/// Reads an answer to its end.
pub fn read(mut stream: TcpStream) -> HttpAnswer {
    let mut bytes = Vec::new();
    // A connection reset after the answer loses nothing.
    let _ = stream.read_to_end(&mut bytes);
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer");
    let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
    let status = head[9..12].parse().unwrap();
    let body = bytes[at + 4..].to_vec();
    let body =
        if head.to_lowercase().contains("transfer-encoding: chunked") { dechunked(&body) } else { body };
    HttpAnswer { status, head, body: String::from_utf8(body).unwrap() }
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = bytes.windows(2).position(|w| w == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..at]).unwrap().trim(), 16).unwrap();
        out.extend_from_slice(&bytes[at + 2..at + 2 + length]);
        bytes = &bytes[(at + 4 + length).min(bytes.len())..];
    }
    out
}
