"""What makes a file a task."""

import pytest

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.sources import DOMAINS, check, input_domains, without_gradient

MODEL = "class Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
INPUTS = "def get_inputs():\n    return [torch.rand(4), torch.rand(4)]\n"
INIT = "def get_init_inputs():\n    return []\n"
SOUND = f"import torch\n{MODEL}{INPUTS}{INIT}"


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        "class Model(Base):\n    pass\n",
        "class Model(torch.nn.Linear):\n    pass\n",
        "from somewhere import Model\n",
        "from somewhere import Net as Model\n",
        "from somewhere import *\n",
        "Model = make_model()\n",
        f"{MODEL.replace('Model', 'Net', 1)}Model = Net\n",
        f"{MODEL.replace('Model', 'Net', 1)}class Model(Net):\n    pass\n",
        "class Model(torch.nn.Module):\n    forward = torch.relu\n",
        "class Model(torch.nn.Module):\n    if True:\n        def forward(self, x):\n            return x\n",
        "if True:\n    class Model(torch.nn.Module):\n        def forward(self, x):\n            return x\n",
        f"class Model:\n    pass\n{MODEL}",
    ],
)
def test_models_that_have_a_forward(model: str) -> None:
    check(f"{model}{INPUTS}{INIT}")


@pytest.mark.parametrize(
    "model",
    [
        "class Model(torch.nn.Module):\n    pass\n",
        "class Model(nn.Module):\n    def __call__(self, x):\n        return x\n",
        "class Model:\n    pass\n",
        "class Net(nn.Module):\n    pass\nclass Model(Net):\n    pass\n",
        "class Net(nn.Module):\n    pass\nModel = Net\n",
        "class Model(Model):\n    pass\n",
    ],
)
def test_models_that_have_none(model: str) -> None:
    with pytest.raises(TaskError, match=r"has no forward method — add `def forward\(self, x\)`"):
        check(f"{model}{INPUTS}{INIT}")


@pytest.mark.parametrize(
    ("source", "message", "fix"),
    [
        (f"{INPUTS}{INIT}", "x.py defines no class Model", "add `class Model"),
        (
            f"{MODEL.replace('Model', 'ModelNew', 1)}{INPUTS}{INIT}",
            "x.py defines ModelNew but no Model: it is a candidate, not a task",
            "give the file with the reference",
        ),
        (f"def Model():\n    pass\n{INPUTS}{INIT}", "x.py: Model is a function", "make it a class"),
        (f"{MODEL}{INIT}", "x.py defines no function get_inputs", "add `def get_inputs(): return"),
        (
            f"{MODEL}{INPUTS}",
            "x.py defines no function get_init_inputs",
            "add `def get_init_inputs(): return []`",
        ),
        (f"{MODEL}{INPUTS.replace('()', '(n)', 1)}{INIT}", "x.py: get_inputs needs arguments", "write it as"),
        (
            f"{MODEL}{INPUTS.replace('()', '(*, n)', 1)}{INIT}",
            "x.py: get_inputs needs arguments",
            "write it as",
        ),
        (f"{MODEL}async {INPUTS}{INIT}", "x.py: get_inputs is not a plain function", "write it as"),
        (f"{MODEL}  {INPUTS}", "x.py is not Python: line 4", "fix that line"),
    ],
)
def test_a_file_that_is_no_task_says_why_on_one_line(source: str, message: str, fix: str) -> None:
    with pytest.raises(TaskError) as error:
        check(source, "x.py")
    assert error.value.message.startswith(message)
    assert error.value.fix.startswith(fix)
    assert "\n" not in str(error.value)


def test_input_functions_may_have_defaults_or_be_assigned() -> None:
    check(f"{MODEL}{INPUTS.replace('()', '(n=3, *, m=4)', 1)}get_init_inputs = list\n")
    check(f"{MODEL}get_inputs = lambda: []\nfrom other import get_init_inputs\n")


def test_domains_are_optional() -> None:
    check(SOUND)
    assert input_domains(SOUND) is None


def test_domains_name_each_input() -> None:
    source = f'{SOUND}input_domains = ["probability", "lower_triangular"]\n'
    check(source)
    assert input_domains(source) == ["probability", "lower_triangular"]
    assert input_domains(f"{SOUND}input_domains = ('real', 'sign')\n") == ["real", "sign"]


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_known_domain_is_accepted(domain: str) -> None:
    assert input_domains(f"input_domains = [{domain!r}]\n") == [domain]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["real", "negative"]', "unknown input domain 'negative'"),
        ('["real"]', "1 input_domains for 2 inputs"),
        ('"real"', "not a written-out list of strings"),
        ("[1, 2]", "not a written-out list of strings"),
        ("make()", "not a written-out list of strings"),
    ],
)
def test_wrong_domains_are_refused(text: str, message: str) -> None:
    source = f"{SOUND}input_domains = {text}\n"
    with pytest.raises(TaskError, match=message):
        input_domains(source)
    with pytest.raises(TaskError, match=message):
        check(source)


def test_inputs_without_a_gradient_are_named() -> None:
    assert without_gradient(SOUND) == []
    source = f'{SOUND}without_gradient = ["x"]\n'
    check(source)
    assert without_gradient(source) == ["x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["cosine"]', "without_gradient names 'cosine', which is no input of forward"),
        ('"x"', "not a written-out list of strings"),
    ],
)
def test_wrong_inputs_without_a_gradient_are_refused(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        check(f"{SOUND}without_gradient = {text}\n")


def test_imported_domains_cannot_be_read() -> None:
    with pytest.raises(TaskError, match="not a written-out list"):
        check(f"from elsewhere import input_domains\n{SOUND}")


def test_inputs_that_cannot_be_counted_are_not() -> None:
    inputs = "def get_inputs():\n    return [*pair, torch.rand(4)]\n"
    assert input_domains(f'{MODEL}{inputs}{INIT}input_domains = ["real"]\n') == ["real"]
