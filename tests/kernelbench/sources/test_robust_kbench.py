"""Tasks of robust-kbench, and CUDA kernels for them."""

import json
from pathlib import Path

import pytest

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size, Task
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import ROBUST, called, written

KERNEL = """#include <torch/extension.h>
__global__ void shift(float* x) {}
torch::Tensor forward(torch::Tensor x, torch::Tensor w, double eps) { return x; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


def one(path: Path) -> Task:
    (task,) = resolve([str(path)])
    return task


def test_configurations_are_the_sizes(tmp_path: Path) -> None:
    task = one(written(tmp_path / "shifted", ROBUST))
    assert task == one(tmp_path / "shifted" / "func_forward.py")
    assert task.id == "file:shifted"
    sizes = [{"batch": "2", "features": "32"}, {"batch": "2", "features": "16"}]
    sizes += [{"batch": "6", "features": "16"}, {"batch": "6", "features": "32"}]
    assert task.workload == tuple(Size(constants=each) for each in sizes)
    assert "out_features = 8\neps = 0.25\n" in task.source
    assert "def get_init_inputs():\n    return [features, out_features, eps]\n" in task.source
    (x,), y = called(task.at(task.workload[2]))
    assert (tuple(x.shape), tuple(y.shape)) == ((6, 16), (6, 8))


def test_the_backward_module_is_read_as_its_forward(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backward = ROBUST["func_forward.py"].replace(
        "def forward_fn",
        "class AutogradFunction(torch.autograd.Function):\n    backward_fn = None\n\n\ndef forward_fn",
    )
    files = {"func_backward.py": backward, "config_backward.json": ROBUST["config_forward.json"]}
    folder = written(tmp_path / "shifted", {**ROBUST, **files})
    task = one(folder / "func_backward.py")
    assert "AutogradFunction" not in task.source
    assert "`kernelwright gradient` writes the task of its gradients" in caplog.text
    assert one(folder).workload == task.workload


def test_without_a_configuration_defaults_are_the_size(tmp_path: Path) -> None:
    module = ROBUST["func_forward.py"].replace("features: int, out", "features: int = 16, out")
    (x,), _ = called(one(written(tmp_path / "plain", {"func_forward.py": module})))
    assert tuple(x.shape) == (4, 16)


def test_what_nothing_takes_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = json.loads(ROBUST["config_forward.json"])
    config["single_init_configs"][0]["kernel_size"] = 2
    one(written(tmp_path / "a", {**ROBUST, "config_forward.json": json.dumps(config)}))
    assert "nothing takes kernel_size, which the configuration sets" in caplog.text


def test_a_kernel_is_called_as_the_function_of_its_module(tmp_path: Path) -> None:
    folder = written(tmp_path / "shifted", {**ROBUST, "k1/forward.cu": KERNEL})
    candidate = candidate_from_file(folder / "k1" / "forward.cu")
    assert candidate.language == "cuda"
    assert "class ModelNew(Model):\n    def forward(self, x):\n" in candidate.source
    assert "return super().forward(x, fn=extension.forward)" in candidate.source
    assert "def forward_fn" in candidate.source and "make_inputs" in candidate.source
    compile(candidate.source, "candidate.py", "exec")


def test_kernels_that_cannot_be_called_are_refused(tmp_path: Path) -> None:
    written(tmp_path, {"lone.cu": KERNEL, "task/backward.cu": KERNEL.replace("forward", "backward")})
    written(tmp_path / "task", ROBUST)
    with pytest.raises(
        UsageError, match=r"lone\.cu has no func_forward\.py beside it that says how it is called"
    ):
        candidate_from_file(tmp_path / "lone.cu")
    with pytest.raises(
        UsageError, match=r"backward\.cu binds no function forward — bind it: PYBIND11_MODULE"
    ):
        candidate_from_file(tmp_path / "task" / "backward.cu")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config_forward.json", "[", r"config_forward\.json is not JSON"),
        ("config_forward.json", "[]", r"config_forward\.json holds no mapping — give it \"single_input_configs\""),
        ("config_forward.json", '{"single_init_configs": [3]}', r"single_… are not lists of mappings"),
        ("config_forward.json", "{}", r"config_forward\.json gives no value for batch"),
        ("config_forward.json", '{"single_input_configs": [{"features": 1}], "single_init_configs": [{"features": 2}]}',
         r"gives features twice, as 2 and 1"),
        ("func_forward.py", "x = 1", r"func_forward\.py does not define Model"),
        ("func_forward.py", "x = (", r"func_forward\.py is not Python"),
    ],
)  # fmt: skip
def test_a_damaged_task_is_refused_in_a_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    module = ROBUST["func_forward.py"].replace("features: int = 16", "features: int")
    folder = written(
        tmp_path / "a",
        {**ROBUST, "func_forward.py": module.replace("batch: int = 4", "batch: int"), name: text},
    )
    with pytest.raises(UsageError, match=message) as error:
        one(folder)
    assert "\n" not in str(error.value)
