"""KernelBench as a Hugging Face data set, read from local folders of the same form."""

import sys
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import MissingPrerequisite, UnknownTaskError, UsageError
from kernelwright.kernelbench.sources import catalogue, resolve

SOURCE = (
    "batch_size = 64\nclass Model(nn.Module):\n    def forward(self, x):\n        return x\n"
    "def get_inputs():\n    return [torch.rand(batch_size)]\ndef get_init_inputs():\n    return []\n"
)


def rows(level: int, names: list[str]) -> dict[str, list[object]]:
    return {
        "code": [f"# {name}\n{SOURCE}" for name in names],
        "level": [level] * len(names),
        "name": list(names),
        "problem_id": [int(name.split("_")[0]) for name in names],
    }


@pytest.fixture
def parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of parquet files as the hub keeps them."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "KernelBench"
    (folder / "data").mkdir(parents=True)
    levels = {1: ["2_ReLU", "10_Softmax", "1_Matmul"], 2: ["40_Matmul_Scaling_ResidualAdd.py"]}
    for level, names in levels.items():
        file = folder / "data" / f"level_{level}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(rows(level, names)).to_parquet(file)
    return folder


def test_problems_are_named_as_in_a_checkout(parquet: Path) -> None:
    name = f"hf:{parquet}"
    (task,) = resolve([f"{name}:2/40"], overrides={"batch_size": "8"})
    assert (task.id, task.level, task.overrides) == (f"{name}:2/40", 2, {"batch_size": "8"})
    assert task.source == "# 40_Matmul_Scaling_ResidualAdd.py\n" + SOURCE.replace("64", "8")
    assert [task.id for task in resolve([f"{name}:level1", f"{name}:1/Soft", name])] == [
        f"{name}:{number}" for number in ("1/1", "1/2", "1/10", "2/40")
    ]
    assert catalogue(f"{name}:2")[0].title == "Matmul Scaling ResidualAdd"
    with pytest.raises(UnknownTaskError, match="level 1 has the problems 1-10"):
        resolve([f"{name}:1/11"])


def test_a_folder_written_by_save_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.DatasetDict({"level_3": datasets.Dataset.from_dict(rows(3, ["7_LSTM"]))})
    data.save_to_disk(tmp_path / "saved")
    assert [task.id for task in resolve([f"hf:{tmp_path / 'saved'}"])] == [f"hf:{tmp_path / 'saved'}:3/7"]


@pytest.mark.parametrize(
    ("split", "drop", "message"),
    [("level_1", "code", "has no column code"), ("train", "", "has no splits level_1")],
)
def test_a_data_set_of_another_form_is_refused(tmp_path: Path, split: str, drop: str, message: str) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {name: values for name, values in rows(1, ["1_Matmul"]).items() if name != drop}
    datasets.DatasetDict({split: datasets.Dataset.from_dict(columns)}).save_to_disk(tmp_path / "other")
    with pytest.raises(UsageError, match=message):
        resolve([f"hf:{tmp_path / 'other'}:1/1"])


def test_a_data_set_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(MissingPrerequisite, match="cannot be loaded") as error:
        resolve([f"hf:{tmp_path / 'nowhere'}:1/1"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["hf", "hf:", "hf::2/40"])
def test_a_data_set_must_be_named(name: str) -> None:
    with pytest.raises(UsageError, match="names no data set"):
        resolve([name])


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPrerequisite) as error:
        resolve(["hf:ScalingIntelligence/KernelBench:2/40"])
    assert error.value.fix == "pip install 'kernelwright[rl]'"
