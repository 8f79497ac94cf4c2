#!/usr/bin/env python3
"""Measures short completions alone and with hostile clients.

    netcl serve -m MODEL --port 8765 &
    python3 tools/serve_hostile.py 127.0.0.1:8765 1500
    python3 tools/serve_hostile.py 127.0.0.1:8765 20 stalled

By default, eight clients send hostile JSON schemas. With `stalled`, each request is sent right after those of 40 clients
that request long streamed answers and do not read them. Prints p50, p99 and the maximum of both series, and the results of the hostile requests.
"""

import http.client
import json
import random
import socket
import sys
import threading
import time

ATTACKERS = 8
STALLED = 40


def post(host, path, body, timeout=60):
    connection = http.client.HTTPConnection(host, timeout=timeout)
    begun = time.perf_counter()
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, time.perf_counter() - begun


def short(host):
    status, seconds = post(host, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
    assert status == 200, status
    return seconds


def spread(times):
    times = sorted(times)
    return times[len(times) // 2], times[int(len(times) * 0.99)], times[-1]


def series(host, count):
    return spread([short(host) for _ in range(count)])


def hostile(i):
    """Returns schema number `i`. All are different, so that a cache cannot answer."""
    rng = random.Random(i)
    kind = i % 9
    if kind == 0:
        return {"type": "string", "allOf": [{"pattern": f"a.{{{j}}}b{i}"} for j in range(40)]}
    if kind == 1:
        return {"type": "integer", "multipleOf": 99999989 - 2 * i}
    if kind == 2:
        chain = {f"a{j}": {"type": "array", "items": {"$ref": f"#/$defs/a{j - 1}"}} for j in range(1, 3000)}
        return {"$defs": {"a0": {"type": "string"}, **chain}, "$ref": "#/$defs/a2999", "title": str(i)}
    if kind == 3:
        letters = [[chr(97 + rng.randrange(26)) + chr(98 + j) for j in range(8)] for _ in range(12)]
        return {"type": "string", "allOf": [{"pattern": f"^({'|'.join(words)})*$"} for words in letters]}
    if kind == 4:
        names = {f"p{j}_{i}": {"type": "string"} for j in range(900)}
        return {"type": "object", "properties": names, "additionalProperties": False}
    if kind == 5:
        either = [{"anyOf": [{"properties": {f"p{j}": {"type": "string"}}}, {"properties": {f"q{j}": {"type": "integer"}}}]} for j in range(20)]
        return {"allOf": either, "title": str(i)}
    if kind == 6:
        return {"enum": [f"x{i}_{j:06d}" for j in range(60000)]}
    if kind == 7:
        return {"type": "string", "pattern": "|".join("[\\p{L}\\p{N}]{%d}x" % j for j in range(200)), "minLength": 5 + i}
    return {"type": "string", "pattern": "(a|b)*a(a|b){%d}(c|d)*c(c|d){20}" % (20 + i), "minLength": 40}


def attack(host, worker, stop, counts):
    i = worker
    while not stop.is_set():
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": hostile(i)}}
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "response_format": schema}
        try:
            if i % 5 == 4:
                # A client that does not wait for its answer.
                connection = http.client.HTTPConnection(host, timeout=5)
                connection.request("POST", "/v1/chat/completions", json.dumps(body))
                connection.close()
                outcome = "left"
            else:
                outcome, _ = post(host, "/v1/chat/completions", body)
        except OSError as error:
            outcome = type(error).__name__
        counts[outcome] = counts.get(outcome, 0) + 1
        i += ATTACKERS


def stall(host):
    """A client that requests a long answer and does not read it."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True})
    name, port = host.rsplit(":", 1)
    connection = socket.create_connection((name, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


def behind_stalled(host):
    """Returns the seconds of a short request after those of stalled readers, and of another one after it."""
    connections = [stall(host) for _ in range(STALLED)]
    # By now, the server has read all of their requests.
    time.sleep(0.1)
    first, second = short(host), short(host)
    for connection in connections:
        connection.close()
    # By now, their texts have ended.
    short(host)
    return first, second


def main():
    host, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 150
    if sys.argv[3:] == ["stalled"]:
        print("alone             p50 %.4f  p99 %.4f  max %.4f s" % series(host, count))
        times = [behind_stalled(host) for _ in range(count)]
        for name, column in zip(["first after them ", "second after them"], zip(*times)):
            print(name, "p50 %.4f  p99 %.4f  max %.4f s" % spread(column))
        return
    print("alone         p50 %.4f  p99 %.4f  max %.4f s" % series(host, count))
    stop, counts = threading.Event(), {}
    threads = [threading.Thread(target=attack, args=(host, worker, stop, counts)) for worker in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    print("under attack  p50 %.4f  p99 %.4f  max %.4f s" % series(host, count))
    stop.set()
    for thread in threads:
        thread.join()
    print("hostile requests by status:", counts)


if __name__ == "__main__":
    main()
