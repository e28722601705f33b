#!/usr/bin/env python3
"""bench/argo_examples.py DIR [NAME...] - which of Argo's own examples run here, which are refused and why

DIR is a clone of argo-workflows; its examples/ are read, never copied. Config maps and claims among
them are applied first (`applied`). Each Workflow that is taken is run on a server of its own in a temporary
directory for up to SECONDS (60). A line each, in Markdown: `succeeded`, `failed` and `error` with the
message of the step that did (`as meant` where the example says of itself that it fails), `waits` (it was
made to, or was not done in that time; it is ended then), or the sentence by which it was refused. Counts
follow, and what was refused by its reason. NAME: only files of these names.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUSTER = os.environ.get("MUSTER", str(ROOT / "build/muster"))
SECONDS = float(os.environ.get("SECONDS", 60))
AT_ONCE = 6
ENDED = ("succeeded", "failed", "error", "terminated")


class Server:
    def __init__(self, folder):
        self.data = Path(folder) / "data"
        self.process = subprocess.Popen([MUSTER, "serve", "--data-dir", self.data, "--port", "0"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1000):
            try:
                doc = json.loads((self.data / "server.json").read_text())
                if doc["pid"] == self.process.pid:
                    break
            except (OSError, ValueError):
                time.sleep(0.01)
        self.url = f"{doc['address']}/k/{(self.data / 'token').read_text().strip()}"

    def call(self, method, path, body=None):
        request = urllib.request.Request(self.url + path, method=method,
                                         data=json.dumps(body).encode() if body is not None else None,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as e:
            text = e.read().decode(errors="replace")
            try:
                doc = json.loads(text)
                error = doc.get("error", doc)
                return {"refused": error.get("message", text) if isinstance(error, dict) else error}
            except ValueError:
                return {"refused": text}


def reason(server, run):
    """What the first leaf that failed said."""
    nodes = server.call("GET", f"/api/runs/default/{run}/nodes").get("nodes", [])
    for node in nodes:
        if node["phase"] in ("Failed", "Error") and not node.get("children") and node.get("message"):
            return f"{node['name']}: {node['message']}"
    return ""


def state_of(server, run, doc, text):
    if doc["state"] == "succeeded":
        return "succeeded"
    if doc["state"] in ENDED:
        meant = " as meant" if "expected-failure" in text else ""
        return f"{doc['state']}{meant}: {reason(server, run) or doc.get('message') or ''}"
    return "waits"


def reason_of(text):
    """A refusal without its place: the key that it speaks of, and the sentence."""
    place = re.match(r"refused: [^ :]+:[0-9:]+ (?:([^ :]*): )?(.*)", text)
    if not place:
        return text[len("refused: "):]
    key = re.sub(r"\[\d+\]", "", (place[1] or "").split(".")[-1])
    return f"`{key}`: {place[2]}" if key else place[2]


def main():
    folder = Path(sys.argv[1]) / "examples"
    files = sorted(p for pattern in ("*.yaml", "*/*.yaml") for p in folder.glob(pattern)
                   if not sys.argv[2:] or p.name in sys.argv[2:])
    with tempfile.TemporaryDirectory() as tmp:
        server = Server(tmp)
        told, running = {}, {}
        try:
            for p in files:
                doc = server.call("POST", "/api/resources", {"text": p.read_text(), "file": p.name})
                if "refused" not in doc:
                    told[p] = "applied"
            for p in [*(p for p in files if p not in told), None]:
                while running and (p is None or len(running) >= AT_ONCE):
                    for q, (run, until) in list(running.items()):
                        doc = server.call("GET", f"/api/runs/default/{run}")
                        if doc["state"] in ENDED or time.monotonic() > until:
                            told[q] = state_of(server, run, doc, q.read_text())
                            server.call("POST", f"/api/runs/default/{run}/terminate", {})
                            del running[q]
                    time.sleep(0.05)
                if p is None:
                    break
                doc = server.call("POST", "/api/runs", {"text": p.read_text(), "name": p.stem})
                if "refused" in doc:
                    told[p] = f"refused: {doc['refused']}"
                else:
                    running[p] = doc["id"], time.monotonic() + SECONDS
        finally:
            server.process.terminate()
            server.process.wait()
    for p in files:
        print(f"| {p.relative_to(folder)} | {told[p].replace('|', '/')} |")
    reasons = {}
    for p, text in told.items():
        if text.startswith("refused: "):
            reasons.setdefault(reason_of(text), []).append(str(p.relative_to(folder).with_suffix("")))
    for why, names in sorted(reasons.items()):
        print(f"\n{len(names)} refused: {why}\n  {', '.join(sorted(names))}")
    counts = {}
    for text in told.values():
        word = text.split(":")[0]
        counts[word] = counts.get(word, 0) + 1
    print(f"\n{len(files)} files: " + ", ".join(f"{n} {word}" for word, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
