"""Includes go one way (README, "The walk"): a folder knows only those it is listed with."""
import os
import re
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("MUSTER_ROOT", Path(__file__).resolve().parents[2]))

MAY_INCLUDE = {
    "base": set(),
    "spec": {"base"},
    "data": {"base"},
    "engine": {"base", "data"},
    "runtime": {"base", "data", "engine", "spec"},
    "serving": {"base", "data", "engine"},
    "drivers": {"base", "spec"},
    "server": {"base", "drivers", "spec"},
    "pipelines": {"base", "drivers", "server", "spec"},
    "protocols": {"base", "pipelines", "server", "spec"},
    "cli": {"base", "data", "drivers", "engine", "pipelines", "protocols", "runtime", "server",
            "serving", "spec", "muster.h"},
    ".": {"base", "data", "engine", "runtime", "serving", "spec"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def sources():
    for folder in MAY_INCLUDE:
        for f in sorted((ROOT / folder).glob("*.[ch]")):
            yield folder, f


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_a_folder_includes_only_what_it_may(folder):
    wrong = []
    for f in sorted((ROOT / folder).glob("*.[ch]")):
        for name in INCLUDE.findall(f.read_text()):
            head = name.split("/")[0]
            if head != folder and head not in MAY_INCLUDE[folder] and (ROOT / head).exists() \
                    and not (folder == "." and "/" not in name):
                wrong.append(f"{f.relative_to(ROOT)} includes {name}")
            if "/" not in name and name != "muster.h":
                wrong.append(f"{f.relative_to(ROOT)}: write the folder in \"{name}\"")
            if name.endswith("_int.h") and head != folder:
                wrong.append(f"{f.relative_to(ROOT)}: {name} is private to {head}/")
    assert not wrong


def test_every_header_opens_with_its_name_and_purpose():
    wrong = [str(f.relative_to(ROOT)) for _, f in sources()
             if not f.read_text().startswith(f"/* {f.relative_to(ROOT)} - ")]
    assert not wrong


def test_lines_fit_in_100_columns_give_or_take_a_word_without_tabs_or_trailing_blanks():
    wrong = []
    for _, f in sources():
        for n, line in enumerate(f.read_text().splitlines(), 1):
            if len(line) > 108 or "\t" in line or line != line.rstrip():
                wrong.append(f"{f.relative_to(ROOT)}:{n}")
    assert not wrong
