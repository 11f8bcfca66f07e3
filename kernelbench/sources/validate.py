"""Checks that a text is a task, without importing it; running it is the evaluator's business.

The format is KernelBench's: a class `Model` with `forward`, and the functions `get_inputs` and
`get_init_inputs` that need no arguments. A task may also declare the domain that each input is drawn from:

    input_domains = ["real", "probability"]

and the inputs, by their names in `forward`, of which training wants no gradient, as it wants none of buffers
and of parameters made with `requires_grad=False`:

    without_gradient = ["cos", "sin"]
"""

import ast

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.sources.assignments import ModuleScope, module_scope, parse

DOMAINS = (
    "real",
    "positive",
    "probability",
    "unit",
    "lower_triangular",
    "upper_triangular",
    "symmetric",
    "sign",
    "mask",
    "index",
    "fixed",
)
FORWARDLESS_BASES = frozenset({"Module", "nn.Module", "torch.nn.Module", "object"})


def check(source: str, where: str = "the task") -> None:
    """Raise `TaskError`, which names the file as `where`, if the source cannot be a task."""
    tree = parse(source, where)
    scope = module_scope(tree)
    _check_model(scope, where)
    _check_function(scope, "get_inputs", "return [torch.rand(batch_size, dim)]", where)
    _check_function(scope, "get_init_inputs", "return []", where)
    _input_domains(scope, where)
    _without_gradient(scope, where)


def input_domains(source: str, where: str = "the task") -> list[str] | None:
    """Return the domain of each input; None if not declared. Raises `TaskError` if declared wrongly."""
    return _input_domains(module_scope(parse(source, where)), where)


def without_gradient(source: str, where: str = "the task") -> list[str]:
    """Return the names of inputs of which no gradient is wanted. Raises `TaskError` if declared wrongly."""
    return _without_gradient(module_scope(parse(source, where)), where)


def number_of_inputs(source: str, where: str = "the task") -> int | None:
    """Return with how many inputs forward is called, if the text has them."""
    scope = module_scope(parse(source, where))
    drawn = _number_of_inputs(scope)
    names = _input_names(scope)
    return drawn if drawn is not None or names is None else len(names)


def model_class(scope: ModuleScope) -> ast.ClassDef | None:
    """Return the class that `Model` names, if the file itself defines it."""
    return _follow(scope, "Model", frozenset())


def _follow(scope: ModuleScope, name: str, seen: frozenset[str]) -> ast.ClassDef | None:
    definition = scope.definitions.get(name)
    assigned = scope.assignments.get(name)
    if assigned and (definition is None or assigned[-1].statement.lineno > definition.lineno):
        value = assigned[-1].value
        if isinstance(value, ast.Name) and name not in seen:
            return _follow(scope, value.id, seen | {name})
        return None
    return definition if isinstance(definition, ast.ClassDef) else None


def _check_model(scope: ModuleScope, where: str) -> None:
    if not scope.binds("Model"):
        if scope.binds("ModelNew"):
            raise TaskError(
                f"{where} defines ModelNew but no Model: it is a candidate, not a task",
                "give the file with the reference Model",
            )
        modules = [
            name
            for name, found in scope.definitions.items()
            if isinstance(found, ast.ClassDef) and _has_forward(scope, found, frozenset())
        ]
        fix = "add `class Model(torch.nn.Module)` with a forward method"
        if modules and where.endswith(".py"):
            fix = f"name a class and its inputs: {where}:{modules[0]} --input 8,128,256"
        raise TaskError(f"{where} defines no class Model", fix)
    is_function = isinstance(scope.definitions.get("Model"), ast.FunctionDef | ast.AsyncFunctionDef)
    if is_function and "Model" not in scope.assignments:
        raise TaskError(f"{where}: Model is a function", "make it a class derived from torch.nn.Module")
    model = model_class(scope)
    if model is not None and not _has_forward(scope, model, frozenset()):
        raise TaskError(f"{where}: class {model.name} has no forward method", "add `def forward(self, x)`")


def _has_forward(scope: ModuleScope, model: ast.ClassDef, seen: frozenset[str]) -> bool:
    """Return False only if the text leaves no doubt: a base class from elsewhere may have `forward`."""
    own = module_scope(ast.Module(body=model.body, type_ignores=[]))
    if own.binds("forward"):
        return True
    for base in model.bases:
        local = _follow(scope, base.id, frozenset()) if isinstance(base, ast.Name) else None
        if local is not None and local.name not in seen:
            if _has_forward(scope, local, seen | {model.name}):
                return True
        elif local is None and ast.unparse(base) not in FORWARDLESS_BASES:
            return True
    return False


def _check_function(scope: ModuleScope, name: str, body: str, where: str) -> None:
    if not scope.binds(name):
        raise TaskError(f"{where} defines no function {name}", f"add `def {name}(): {body}`")
    function = scope.definitions.get(name)
    if name in scope.assignments or function is None:
        return
    if not isinstance(function, ast.FunctionDef):
        raise TaskError(f"{where}: {name} is not a plain function", f"write it as `def {name}(): …`")
    arguments = function.args
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    if required or any(default is None for default in arguments.kw_defaults):
        raise TaskError(f"{where}: {name} needs arguments", f"write it as `def {name}(): …`")


def _input_domains(scope: ModuleScope, where: str) -> list[str] | None:
    value = _strings(scope, "input_domains", '["real", "positive"]', where)
    if value is None:
        return None
    unknown = [domain for domain in value if domain not in DOMAINS]
    if unknown:
        raise TaskError(f"{where}: unknown input domain {unknown[0]!r}", f"use one of {', '.join(DOMAINS)}")
    inputs = _number_of_inputs(scope)
    if inputs is not None and inputs != len(value):
        raise TaskError(
            f"{where}: {len(value)} input_domains for {inputs} inputs", "name one domain for each input"
        )
    return value


def _without_gradient(scope: ModuleScope, where: str) -> list[str]:
    names = _strings(scope, "without_gradient", '["cos", "sin"]', where) or []
    inputs = _input_names(scope)
    if inputs is not None and (unknown := [name for name in names if name not in inputs]):
        raise TaskError(
            f"{where}: without_gradient names {unknown[0]!r}, which is no input of forward",
            f"use some of {', '.join(inputs)}",
        )
    return names


def _strings(scope: ModuleScope, name: str, example: str, where: str) -> list[str] | None:
    """Return the list of strings that a name is assigned; None if it is not."""
    found = scope.assignments.get(name)
    if not found and name not in scope.imported:
        return None
    try:
        value = ast.literal_eval(found[-1].value) if found else None
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise TaskError(
            f"{where}: {name} is not a written-out list of strings", f"use e.g. {name} = {example}"
        )
    return list(value)


def _input_names(scope: ModuleScope) -> list[str] | None:
    """Return the names of forward's arguments, if the text has them."""
    model = model_class(scope)
    own = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"] if model else []
    if not own or own[-1].args.vararg is not None:
        return None
    arguments = own[-1].args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]


def _number_of_inputs(scope: ModuleScope) -> int | None:
    """Return the number of inputs of `get_inputs`, if it has one `return [a, b, …]`."""
    function = scope.definitions.get("get_inputs")
    if function is None or "get_inputs" in scope.assignments:
        return None
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.List | ast.Tuple):
        return None
    if any(isinstance(element, ast.Starred) for element in returned[0].elts):
        return None
    return len(returned[0].elts)
