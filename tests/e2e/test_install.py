"""What `make install` puts down is enough to build a C program, and exports only muster_*."""
import os
import subprocess
from pathlib import Path

import pytest


def run(*command, **kw):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, **kw)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory, muster):
    """The build under test, installed under a folder of its own."""
    build = Path(muster.path).resolve().parent
    dest = tmp_path_factory.mktemp("install")
    run("meson", "install", "-C", build, "--no-rebuild", "--destdir", dest)
    (pc,) = dest.rglob("pkgconfig/muster.pc")
    return dest, pc


def pkg_config(prefix, *args):
    dest, pc = prefix
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(dest)}
    return run("pkg-config", *args, "muster", env=env).split()


def names(*nm):
    return {line.split()[-1] for line in run("nm", *nm).splitlines() if " " in line}


def test_the_libraries_export_only_our_names(prefix):
    lib = prefix[1].parent.parent
    for found in (names("-D", "--defined-only", lib / "libmuster.so"),
                  names("-g", "--defined-only", lib / "libmuster.a")):
        assert found and all(n.startswith("muster_") for n in found), sorted(found)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("kind", ["shared", "static"])
def test_the_example_builds_against_it(prefix, root, data_dir, tmp_path, compiler, kind):
    lib = prefix[1].parent.parent
    program = tmp_path / "fit_a_line"
    source = root / "examples/fit-a-line/fit_a_line.c"
    flags = pkg_config(prefix, "--cflags")
    if kind == "static":
        libs = [lib / "libmuster.a", "-ljansson", "-lyaml", "-lz", "-lnettle", "-lm", "-lpthread"]
    else:
        libs = pkg_config(prefix, "--libs")
    run(compiler, "-Wall", "-Wextra", "-Werror", source, *flags, *libs, "-o", program)
    out = run(program, data_dir / "boston_house_prices.csv", cwd=tmp_path, timeout=300,
              env={**os.environ, "LD_LIBRARY_PATH": str(lib)})
    assert out.strip() and (tmp_path / "fit_a_line.inference.model/weights.safetensors").exists()


def test_the_header_stands_alone_in_c99_and_c_plus_plus(prefix, tmp_path):
    flags = pkg_config(prefix, "--cflags")
    for name, command in {"a.c": ["gcc", "-std=c99", "-pedantic"], "a.cc": ["g++"]}.items():
        if name == "a.cc" and subprocess.run(["which", "g++"], capture_output=True).returncode:
            continue
        (tmp_path / name).write_text("#include <muster.h>\nint main(void) { return 0; }\n")
        run(*command, "-Wall", "-Wextra", "-Werror", *flags, "-c", tmp_path / name, "-o",
            tmp_path / "a.o")
