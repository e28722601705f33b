"""The console in a real browser. Pictures of what was seen stay in build/screens."""
import os
import shutil
from pathlib import Path

import pytest

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


def test_the_links_token_leaves_the_browser_and_log_out_ends_the_session(page, server):
    assert page.url == f"{server.address}/#/jobs"
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and server.token not in str(cookie)
    assert page.evaluate("document.cookie") == ""
    page.go_back()
    assert "token" not in page.url
    page.goto(f"{server.address}/#/jobs")
    page.click("button:has-text('Log out')")
    page.wait_for_selector(".trouble:has-text('Not logged in')")
    old = {"Cookie": f"muster={cookie['value']}"}
    assert server.call("GET", "/api/whoami", token="", headers=old)[0] == 401
    page.goto(f"{server.address}/#token={server.token}")        # the same tab: only the # changes
    page.wait_for_selector("h1:has-text('Jobs')")
    page.wait_for_selector(".trouble", state="detached")
    page.wait_for_url(f"{server.address}/#/jobs")


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
