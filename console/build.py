#!/usr/bin/env python3
"""Bundles the console and writes it as C: build.py OUT.c CC-DEPFILE.

The packages that package-lock.json names are kept in the cache, by the digest of that file, so that
a fresh clone needs no network when they are there."""
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGES = {"index.html": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8",
         "app.css": "text/css; charset=utf-8"}


def packages():
    """The folder with node_modules; fetched where it is missing."""
    lock = (HERE / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster/console"
    home = cache / hashlib.sha256(lock).hexdigest()[:16]
    if not (home / "node_modules").is_dir():
        part = cache / f"{home.name}.{os.getpid()}"
        part.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, part)
        try:
            subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
                           cwd=part, check=True)
            part.rename(home)
        except OSError:
            if not (home / "node_modules").is_dir():    # else another build was first
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return home


def bundle(out):
    home = packages()
    binary = next(home.glob("node_modules/@esbuild/*/bin/esbuild"))
    subprocess.run([binary, HERE / "app.tsx", "--bundle", "--minify", "--jsx=automatic",
                    "--jsx-import-source=preact", "--log-level=warning", f"--outfile={out / 'app.js'}"],
                   check=True, env={**os.environ, "NODE_PATH": str(home / "node_modules")})
    shutil.copy(HERE / "index.html", out)


def as_c(folder):
    rows = []
    yield '#include "protocols/console.h"\n'
    for name, kind in PAGES.items():
        packed = gzip.compress((folder / name).read_bytes(), 9, mtime=0)
        word = name.replace(".", "_")
        text = "".join(f"{b}," + ("\n" if i % 24 == 23 else "") for i, b in enumerate(packed))
        yield f"static const unsigned char {word}[] = {{\n{text}\n}};\n"
        rows.append(f'    {{ "{name}", "{kind}", {word}, sizeof {word}, '
                    f'"\\"{hashlib.sha256(packed).hexdigest()[:16]}\\"" }},\n')
    yield "const struct console_page console_pages[] = {\n" + "".join(rows) + "    { 0 },\n};\n"


def main():
    target = Path(sys.argv[1])
    work = target.with_suffix(".d")
    work.mkdir(exist_ok=True)
    bundle(work)
    target.write_text("".join(as_c(work)))


main()
