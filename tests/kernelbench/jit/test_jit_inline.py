"""`load_inline` through our cache. No test here reads torch's headers: that takes half a minute."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.jit import inline, latency, precompiled
from kernelwright.kernelbench.jit.cache import BuildCache

pytestmark = pytest.mark.builds

PLAIN = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plain", nullptr, -1, nullptr};
extern "C" PyObject* PyInit_plain() {
    PyObject* module = PyModule_Create(&definition);
    PyModule_AddIntConstant(module, "value", VALUE);
    return module;
}
"""


@pytest.fixture
def load_inline() -> Iterator[Callable[..., Any]]:
    original = cpp_extension.load_inline
    inline.install()
    yield cpp_extension.load_inline
    cpp_extension.load_inline = original


def plain(load_inline: Callable[..., Any], value: int = 1, **more: Any) -> Any:
    source = PLAIN.replace("VALUE", str(value))
    return load_inline(name="plain", cpp_sources=source, no_implicit_headers=True, **more)


def test_two_sources_of_one_name_both_work(load_inline: Callable[..., Any]):
    one, two = plain(load_inline, 1), plain(load_inline, 2)
    assert (one.value, two.value, plain(load_inline, 1).value) == (1, 2, 1)
    assert one.__name__ == two.__name__ == "plain"


def test_install_twice_is_install_once(load_inline: Callable[..., Any]):
    inline.install()
    assert cpp_extension.load_inline is load_inline


def test_a_second_process_needs_no_compiler_run(
    load_inline: Callable[..., Any], wrapper: Callable[[str], Path]
):
    folder = wrapper("echo ran >> $D/log")
    plain(load_inline)
    runs = (folder / "log").read_text()
    plain(load_inline)
    assert (folder / "log").read_text() == runs


def test_flags_and_source_lists_reach_the_compiler(load_inline: Callable[..., Any]):
    more = {"extra_cflags": ["-O2 -DVALUE=7"], "extra_ldflags": ["-fopenmp", "-lgomp", ""]}
    module = load_inline("plain", [*PLAIN.split("// nothing"), "// second"], no_implicit_headers=True, **more)
    assert module.value == 7


def test_a_changed_header_is_a_new_build(load_inline: Callable[..., Any], tmp_path: Path):
    include = tmp_path / "include"
    include.mkdir()
    source = '#include "value.h"\n' + PLAIN
    values = []
    for value in (3, 4):
        (include / "value.h").write_text(f"#define VALUE {value}\n")
        module = load_inline("plain", source, no_implicit_headers=True, extra_include_paths=[str(include)])
        values.append(module.value)
    assert values == [3, 4]


@pytest.mark.parametrize("flag", ["-Wl,-rpath,/tmp", "-L/tmp", "-lcuda", "/tmp/evil.so", "-Wl,--wrap=malloc"])
def test_a_linker_flag_outside_the_allowlist_is_refused(load_inline: Callable[..., Any], flag: str):
    with pytest.raises(jit.BuildError, match=r"linker flag .* is not allowed"):
        plain(load_inline, extra_ldflags=[flag])


def test_a_compiler_flag_outside_the_allowlist_is_refused(load_inline: Callable[..., Any]):
    with pytest.raises(jit.BuildError, match="compiler flag '-I/tmp' is not allowed"):
        plain(load_inline, extra_cflags=["-I/tmp"])


def test_errors_point_to_the_callers_lines(load_inline: Callable[..., Any]):
    with pytest.raises(jit.BuildError) as caught:
        load_inline("plain", ["int fine;", "int a;\nint b = unknown;"], no_implicit_headers=True)
    assert "kernel_1.cpp:2:" in str(caught.value)
    assert caught.value.lines == (2,)


def test_cuda_sources_are_built_by_torch_and_only_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A candidate process finds what its builder has built, and only reads. Without a GPU they are emulated."""
    seen: list[dict[str, Any]] = []

    def original(name: str, cpp_sources: Any, cuda_sources: Any = None, with_cuda: Any = None,
                 build_directory: Any = None, is_python_module: bool = True, verbose: bool = False) -> str:  # fmt: skip
        seen.append({"name": name, "cuda_sources": cuda_sources})
        if cuda_sources == "wrong":
            raise RuntimeError("Error building extension 'x'")
        (Path(build_directory) / f"{name}.so").touch()
        return "torch's"

    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(cpp_extension, "load_inline", original)
    monkeypatch.setattr(inline, "load", lambda name, path, is_python_module: path)
    inline.install()
    load_inline = cpp_extension.load_inline
    assert load_inline("x", "", cuda_sources="__global__ void k() {}") == "torch's"
    found = load_inline("x", "", cuda_sources="__global__ void k() {}", verbose=True)
    assert isinstance(found, Path) and found.name == "x.so" and found.exists()
    assert load_inline("x", "", with_cuda=True) == "torch's"
    assert len(seen) == 2
    with pytest.raises(jit.BuildError, match="Error building"):
        load_inline("x", "", cuda_sources="wrong")


def test_one_precompiled_header_serves_all_sources_of_the_same_flags(
    load_inline: Callable[..., Any],
    wrapper: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """With a header that is quickly made; the evaluator's tests build against the real one."""
    monkeypatch.setattr(precompiled, "_HEADER", "#pragma once\n#include <Python.h>\n")
    folder = wrapper('echo "$@" >> $D/log')
    for value in (1, 2):
        source = "#include <torch/extension.h>\n" + PLAIN.replace("VALUE", str(value))
        assert load_inline(name="plain", cpp_sources=source).value == value
    runs = (folder / "log").read_text().splitlines()
    assert sum("c++-header" in run for run in runs) == 1
    compiles = [run for run in runs if " -c main.cpp" in run]
    assert len(compiles) == 2
    assert all("/compact.h " in run for run in compiles)
    assert header_is_used(compiles[0].split(), tmp_path)


def header_is_used(words: list[str], folder: Path) -> bool:
    """GCC's -H marks a precompiled header it accepts with an exclamation mark."""
    (folder / "main.cpp").write_text("int f(int x) { return x; }\n")
    words = [word for word in words if word not in ("-o", "main.o", "-c")]
    command = ["g++", *words, "-fsyntax-only", "-H", "-Winvalid-pch"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return any(line.startswith("! ") and line.endswith("compact.h.gch") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("source", "suffices"),
    [
        ("torch::Tensor f(torch::Tensor x) { return x.relu(); }", True),
        ("#include <torch/extension.h>\n#include <ATen/Parallel.h>\nat::Tensor f(at::Tensor x);", True),
        ("namespace F = torch::nn::functional;", False),
        ("using namespace torch; nn::Linear layer(1, 2);", False),
        ("#include <torch/script.h>", False),
    ],
)
def test_sources_that_name_the_frontend_get_the_whole_header(source: str, suffices: bool):
    assert precompiled.suffices(source) is suffices


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        ("kernel.cpp:1:1: error: 'nnn' is not a member of 'torch'", True),
        ("kernel.cpp:1:1: error: 'torch::stack_of' has not been declared", True),
        ("kernel.cpp:1:1: error: 'barrier' is not a member of 'std'", True),
        ("kernel.cpp:1:1: error: 'rowz' was not declared in this scope", False),
        ("kernel.cpp:1:1: error: expected ';' before 'return'", False),
    ],
)
def test_only_errors_that_the_whole_header_may_mend_are_tried_again(error: str, lacking: bool):
    assert precompiled.may_be_lacking(error) is lacking


def test_latency_ratios_are_against_torchs_own():
    seconds = {
        "compile_cpp_s": 0.1,
        "compile_cpp_hit_s": 0.001,
        "load_inline_s": 5.0,
        "load_inline_hit_s": 0.01,
    }
    table = latency.LatencyTable(load_inline_stock_s=20.0, precompiled_header_s=30.0, **seconds)
    assert table.ratios == {
        "compile_cpp": pytest.approx(200),
        "compile_cpp_hit": pytest.approx(20000),
        "load_inline": pytest.approx(4),
        "load_inline_hit": pytest.approx(2000),
    }
    assert table.model_copy(update={"load_inline_stock_s": None}).ratios == {}


def test_cuda_files_without_a_gpu_are_sources_of_load_inline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`load` of .cu files, with the headers that lie beside them or in folders that are named."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(inline, "emulated", lambda arguments, cache: given.update(arguments))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "types.h").write_text("#pragma once\nusing T = float;\n")
    (tmp_path / "k.cuh").write_text('#include "types.h"\n#include <cuda.h>\n__global__ void k(T* x);\n')
    (tmp_path / "k.cu").write_text('#include "k.cuh"\n#include "k.cuh"\n#include "torch.h"\nint n;\n')
    (tmp_path / "bind.cpp").write_text("int bound;\n")
    files = [str(tmp_path / "bind.cpp"), str(tmp_path / "k.cu")]
    load = inline._in_place_of(cpp_extension.load, inline._load_files)
    load("of_files", files, extra_include_paths=[str(tmp_path / "more")], extra_cuda_cflags=["-DN=3"])
    (source,) = given["cuda_sources"]
    assert source.count("using T = float;") == 1 and source.index("using T") < source.index("__global__")
    assert '#include "torch.h"' in source and "#include <cuda.h>" in source
    assert given["cpp_sources"] == ["int bound;\n"] and given["functions"] is None
    assert given["name"] == "of_files" and given["extra_cuda_cflags"] == ["-DN=3"]
    with pytest.raises(jit.BuildError, match=r"no\.cu cannot be read \(No such file"):
        load("of_files", str(tmp_path / "no.cu"))


@pytest.mark.parametrize("functions", ["doubled", ["other", "doubled"], {"ours::doubled": "twice"}])
def test_what_torch_binds_without_cuda_sources_has_to_be_declared(functions: Any, tmp_path: Path) -> None:
    """In emulation all sources are one, so that a file was right there which nvcc's torch cannot build."""
    given = {"name": "x", "cpp_sources": "int other();", "cuda_sources": "int doubled() { return 2; }"}
    with pytest.raises(jit.BuildError, match=r"doubled' was not declared.*cpp_sources"):
        inline.emulated({**given, "functions": functions}, BuildCache(tmp_path))


def test_files_of_plain_cpp_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def original(name: str, sources: Any, extra_cflags: Any = None) -> tuple[str, Any]:
        return name, sources

    load = inline._in_place_of(original, inline._load_files)
    assert load("x", ["k.cpp"]) == ("x", ["k.cpp"])
