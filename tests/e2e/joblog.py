"""What a keeper wrote, read as drivers/journal.h says: the files of an attempt, line by line."""
import re
from pathlib import Path

FULL = re.compile("\1([oem])(\\d+) (\\d+\\.\\d{6}) (.*)", re.S)
SUM = re.compile("\4[0-o]{6}")
NEAR = re.compile("\2([oem])([0-o]{4})(.*)", re.S)


def numbered(folder):
    """The files there are, oldest first: a log that outgrew its limit does not begin with log.0."""
    return sorted(Path(folder).glob("log.*"), key=lambda f: int(f.suffix[1:]))


def read(folder):
    """(time, stream, worker, text) of each line."""
    for file in numbered(folder):
        stream = worker = base = now = None
        with open(file, encoding="utf-8", newline="\n") as lines:
            assert re.fullmatch("\5\\d+\n", lines.readline()), file
            for line in lines:
                assert line.endswith("\n"), f"{file}: {line[:200]!r}"
                text = line[:-1]
                if SUM.fullmatch(text):
                    stream = None       # the next line says it anew
                    continue
                if found := FULL.fullmatch(text):
                    stream, worker, base, text = found[1], int(found[2]), float(found[3]), found[4]
                    now = base
                elif found := NEAR.fullmatch(text):
                    stream, digits, text = found[1], found[2], found[3]
                    micros = 0
                    for d in digits:
                        micros = micros * 64 + ord(d) - ord("0")
                    now = base + micros * 1e-6
                assert stream and text[:1] not in ("\1", "\2", "\4", "\5"), f"{file}: {line[:200]!r}"
                yield now, stream, worker, text
