#!/usr/bin/env python3
"""Sends mixed requests to `netcl serve` for some minutes, and checks for leaks: memory of host and device, slots, threads, open files.

    python tools/serve_soak.py --netcl target/release/netcl --model FOLDER --minutes 30 [--clients 8] [--arguments "--device sim"]

Clients stream, request whole answers, schemas, function calls, vectors and tokens, disconnect during answers, and send invalid requests.
Numbers are recorded six times while the server is idle, and the last ones are compared with the first. Ends with 1 if a request gets a wrong
answer, memory has grown by more than --growth, or a slot was lost. Linux only, because it reads /proc.
"""

import argparse
import collections
import http.client
import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time

USER = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def kinds(draw):
    """A request: its name, path, body, the allowed statuses, and whether its client disconnects early."""
    words = " ".join(draw.choice(["the", "cat", "sat", "on", "a", "mat"]) for _ in range(draw.randrange(1, 60)))
    user = [{"role": "user", "content": words}]
    most = draw.randrange(1, 120)
    sampled = {"max_tokens": most, "seed": draw.randrange(1 << 30), "temperature": draw.choice([0, 0.7, 1.5])}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {**SCHEMA, "title": str(draw.randrange(200))}}}
    called = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    return draw.choice([
        ("stream", CHAT, {"messages": user, "stream": True, **sampled}, [200], False),
        ("stream", TEXT, {"prompt": words, "stream": True, "logprobs": 3, **sampled}, [200], False),
        ("whole", CHAT, {"messages": user, "n": draw.randrange(1, 4), **sampled}, [200], False),
        ("stopped", CHAT, {"messages": user, "stop": ["a", "the"], **sampled}, [200], False),
        ("schema", CHAT, {"messages": user, "response_format": form, **sampled}, [200], False),
        ("call", CHAT, {"messages": user, "stream": True, **called, **sampled}, [200, 400], False),
        ("response", "/v1/responses", {"input": words, "stream": True, "max_output_tokens": most}, [200], False),
        ("ollama", "/api/chat", {"model": None, "messages": user, "options": {"num_predict": most}}, [200], False),
        ("vectors", "/v1/embeddings", {"input": [words[: 1 + n] for n in range(draw.randrange(1, 40))]}, [200], False),
        ("tokens", "/tokenize", {"content": words}, [200], False),
        ("gone", TEXT, {"prompt": words, "stream": True, "max_tokens": 400, "ignore_eos": True}, [200], True),
        ("gone", CHAT, {"messages": user, "max_tokens": 400, "ignore_eos": True}, [200], True),
        ("wrong", CHAT, {"messages": user, "frobnicate": 1}, [400], False),
        ("wrong", TEXT, {"prompt": "word " * 20_000}, [400], False),
        ("wrong", CHAT, {"messages": user, "response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}}, [400], False),
        ("wrong", TEXT, {"prompt": words, "model": "none"}, [404], False),
        ("wrong", "/v1/none", {}, [404], False),
    ])


class Soak:
    def __init__(self, address, model):
        self.address, self.model = address, model
        self.counts, self.wrong = collections.Counter(), []
        self.until = 0.0

    def ask(self, path, body=None, goes=None):
        """Returns status and text. With `goes`, the client reads that many bytes and disconnects."""
        connection = http.client.HTTPConnection(self.address, timeout=300)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            if goes is not None and goes < 0:
                return 0, ""
            answer = connection.getresponse()
            return answer.status, (answer.read() if goes is None else answer.read(goes)).decode(errors="replace")
        finally:
            connection.close()

    def client(self, seed):
        draw = random.Random(seed)
        while time.monotonic() < self.until:
            name, path, body, statuses, leaves = kinds(draw)
            if "model" in body and body["model"] is None:
                body["model"] = self.model
            goes = draw.choice([-1, 1, 300]) if leaves else None
            if goes is not None and goes > 0 and not body.get("stream"):
                goes = -1
            try:
                status, text = self.ask(path, body, goes)
            except OSError as error:
                status, text = -1, repr(error)
            self.counts[name if status != 429 else "429"] += 1
            bad = status not in statuses + [429] and goes is None or goes is None and status == 200 and '"error": {' in text
            if bad:
                self.wrong.append(f"{name} {path}: {status} {text[:300]}")
            if status == 429:
                time.sleep(0.05)

    def run(self, seconds, clients, seed):
        self.until = time.monotonic() + seconds
        threads = [threading.Thread(target=self.client, args=(seed + n,)) for n in range(clients)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

    def idle(self):
        """Returns the numbers of the device's page after all requests have ended."""
        end = time.monotonic() + 60
        while True:
            data = json.loads(self.ask("/device/data")[1])
            engine = data["engine"]
            if engine["running"] == engine["waiting"] == engine["pages_used"] == 0:
                return data
            assert time.monotonic() < end, f"texts or pages are left: {engine}"
            time.sleep(0.2)


def numbers(soak, pid):
    data = soak.idle()
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = dict(line.split(":", 1) for line in file)
    rss = int(status["VmRSS"].split()[0]) * 1024
    return {
        "rss": rss, "threads": int(status["Threads"]), "files": len(os.listdir(f"/proc/{pid}/fd")),
        "device": data["device"]["used_bytes"], "peak": data["device"]["peak_bytes"],
        "requests": data["requests"], "tokens": data["tokens"]["generated_total"],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--netcl", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--growth", type=int, default=16, help="allowed growth of the process in MiB after the first sixth")
    parser.add_argument("--arguments", default="", help="additional arguments of netcl serve")
    args = parser.parse_args()
    command = [args.netcl, "serve", "-m", args.model, "--port", "0", "--log-format", "json", *shlex.split(args.arguments)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = server.stdout.readline().strip().removeprefix("http://")
        soak = Soak(address, None)
        while soak.ask("/ready")[0] != 200:
            assert server.poll() is None, "the server ended"
            time.sleep(0.2)
        soak.model = json.loads(soak.ask("/v1/models")[1])["data"][0]["id"]
        seconds, taken = args.minutes * 60, []
        for part in range(6):
            soak.run(seconds / 6, args.clients, 1000 * part)
            taken.append(numbers(soak, server.pid))
            print(json.dumps(taken[-1]), flush=True)
        print(dict(soak.counts))
        wrong = soak.wrong[:10]
        # Uses all slots at the same time.
        slots = json.loads(soak.ask("/device/data")[1])["engine"]["slots"]
        status, text = soak.ask(TEXT, {"prompt": "a", "n": slots, "max_tokens": 4})
        if status != 200 or len(json.loads(text)["choices"]) != slots:
            wrong.append(f"a slot is lost: {status} {text[:200]}")
        before, after = taken[0], taken[-1]
        if after["rss"] - before["rss"] > args.growth << 20:
            wrong.append(f"the process grew by {(after['rss'] - before['rss']) >> 10} KiB")
        # A connection or two may still be closing.
        for key, more in [("device", 0), ("threads", 8), ("files", 8)]:
            if after[key] > before[key] + more:
                wrong.append(f"{key}: {before[key]} before, {after[key]} after")
        print("\n".join(f"FAILED: {what}" for what in wrong) or "ok")
    finally:
        server.terminate()
        code = server.wait(60)
    assert code == 0, code
    sys.exit(min(len(wrong), 1))


if __name__ == "__main__":
    main()
