"""The front of the program: help, version, did-you-mean, exit codes, how fast it starts."""
import os
import re

import pytest


def commands(muster):
    listed = re.findall(r"^  (\S+) .*?  \S", muster("--help").stdout, re.M)
    assert "help" in listed
    return listed


def test_version_is_one_line(muster):
    assert re.fullmatch(r"muster \d+\.\d+\.\d+\n", muster("--version").stdout)


def test_every_command_has_help_with_an_example_both_ways(muster):
    for name in commands(muster):
        text = muster("help", name).stdout
        assert text == muster(name, "--help").stdout
        assert text.startswith(f"usage: muster {name}")
        assert re.search(rf"^example:\n  .*\bmuster {name}\b", text, re.M), name


def test_every_command_refuses_an_option_that_it_does_not_have(muster):
    for name in commands(muster):
        done = muster(name, "--zzzz", check=False)
        assert done.returncode == 2 and "--zzzz" in done.stderr, name


@pytest.mark.parametrize("typed, meant", [("trian", "train"), ("evalute", "evaluate"),
                                          ("hepl", "help")])
def test_a_slip_is_told_the_nearest_command(muster, typed, meant):
    assert meant in commands(muster)
    done = muster(typed, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert f'did you mean "{meant}"?' in done.stderr


def test_no_command_shows_the_list_and_fails(muster):
    done = muster(check=False)
    assert done.returncode == 2 and "usage: muster COMMAND" in done.stderr


def test_an_option_before_the_command_is_explained(muster):
    done = muster("--json", check=False)
    assert done.returncode == 2 and "the command comes first" in done.stderr


def test_output_that_cannot_be_written_is_a_failure(muster):
    import subprocess
    with open("/dev/full", "w") as full:
        done = subprocess.run([muster.path, "help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 7 and "cannot write the output" in done.stderr


def test_no_colour_in_a_pipe(muster):
    done = muster("nonsense", check=False, env={"TERM": "xterm"})
    assert "\033" not in done.stderr


def test_it_is_one_file_of_at_most_10_mb_that_starts_in_5_ms(muster):
    assert os.path.getsize(muster.path) <= 10e6
    best = min(_cpu(muster) for _ in range(50))
    assert best <= 0.005


def _cpu(muster):
    """Seconds of a processor: those of the clock are also of who else runs here."""
    pid = os.posix_spawn(muster.path, [muster.path, "--version"], {},
                         file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
    used = os.wait4(pid, 0)[2]
    return used.ru_utime + used.ru_stime
