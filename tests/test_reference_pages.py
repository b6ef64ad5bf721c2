"""The reference: every public name says what it is, what it takes, in which shape, and what it raises.

Rules for a function of the public surface:

* its first sentence ends in the first paragraph and says what comes back, as a noun phrase or after "Returns";
* ``Args:`` has an entry for every parameter, in the order of the signature, and none for another; a function of one
  parameter may do with its name in the first sentence;
* an array's entry has its shape in brackets, as ``[N, d]``;
* ``Raises:`` has every exception that the function itself raises;
* kernels and policies name their ``Source:``, unless they are listed below as nobody's.

A record (NamedTuple or dataclass) names every field in its docstring.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from types import ModuleType
from typing import NamedTuple

import jax
import pytest

import jaxcascade as jc
from jaxcascade import cascade, data, deferral, interop, kernels, plotting, queueing, testing

SURFACE = (jc, kernels, deferral, deferral.theory, cascade, queueing, data, plotting, testing, interop)
# What may be a number or a path as well has no shape to tell, nor has a function of arrays.
ARRAY = re.compile(r"(jax\.Array|np\.ndarray|ArrayLike)( \| None)?$")
# Data structures and textbook algebra, and the baselines that users expect: of no paper.
OF_NO_PAPER = {
    *("bag_add", "bag_find", "bag_first", "bag_grow", "bag_init", "bag_read", "bag_serve"),
    *("fifo_init", "fifo_pop", "fifo_push", "fold_rows", "padded_rows"),
    *("conjugate_gradient", "solve_positive", "rank_one_inverse", "refine_inverse"),
    *("factor_init", "factor_norm", "factor_sample", "signed_history"),
    *("accept_all", "defer_all", "random", "best_single", "cheapest", "open_all", "random_box"),
}


def public_names():
    """Every public function, method and record once, by the name under which it is found."""
    found = {}
    for module in SURFACE:
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            value = getattr(module, name)
            if isinstance(value, ModuleType) or not getattr(value, "__module__", "").startswith("jaxcascade"):
                continue
            if not (inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))):
                continue
            label = f"{module.__name__}.{name}"
            if id(value) not in {id(v) for v in found.values()}:
                found[label] = value
            if dataclasses.is_dataclass(value):
                methods = {k: v for k, v in vars(value).items() if inspect.isfunction(v) and not k.startswith("_")}
                found |= {f"{label}.{k}": v for k, v in methods.items()}
    return found


PUBLIC = public_names()
POLICIES = [factory for system in jc.systems().values() for factory in system.policies.values()]


def section(doc, name):
    """The text of one section, or None."""
    found = re.search(rf"^{name}:(.*?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else None


def entries(text):
    """The entries of a section by name."""
    return dict(re.findall(r"^  \*{0,2}(\w+): (.*?)(?=^  \S|\Z)", text or "", re.MULTILINE | re.DOTALL))


def faults(value):
    """What the docstring lacks, as a list of texts."""
    doc = inspect.getdoc(value) or ""
    if not doc:
        return ["no docstring"]
    return record_faults(value, doc) if inspect.isclass(value) else list(function_faults(value, doc))


def record_faults(value, doc):
    fields = value._fields if hasattr(value, "_fields") else [f.name for f in dataclasses.fields(value)]
    return [f"field {name!r} is not described" for name in fields if not re.search(rf"\b{name}\b", doc)]


def function_faults(value, doc):
    function = inspect.unwrap(value)
    signature = inspect.signature(function)
    parameters = [name for name in signature.parameters if name != "self"]
    first, arguments = doc.split("\n\n")[0], section(doc, "Args")
    if not first.endswith((".", ".``")):
        yield f"the first paragraph is no sentence: {first[-40:]!r}"
    if re.match(r"(Computes?|Gets?|Calculates?|Creates?|Builds?|This)\b", first):
        yield f"the first sentence does not say what comes back: {first[:40]!r}"
    found = entries(arguments)
    named_in_prose = len(parameters) == 1 and re.search(rf"\b{parameters[0]}\b", first)
    if (arguments is not None or not named_in_prose) and list(found) != parameters:
        yield f"Args has {list(found)}, the signature {parameters}"
    for name in arrays(function):
        if name in found and "key" not in name and "[" not in found[name]:
            yield f"no shape for {name!r}"
    told = entries(section(doc, "Raises"))
    for name in sorted(raised(function) - set(told)):
        yield f"Raises does not name {name}"
    is_kernel = function.__module__.startswith("jaxcascade.kernels")
    if (is_kernel or value in POLICIES) and function.__name__ not in OF_NO_PAPER and section(doc, "Source") is None:
        yield "no Source"


def parsed(function):
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def arrays(function):
    """Names of the parameters that are annotated as arrays, in the words of the source."""
    given = parsed(function).args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [arg.arg for arg in every if arg.annotation is not None and ARRAY.match(ast.unparse(arg.annotation))]


def raised(function):
    """Names of the exceptions that the function's own body raises anew."""
    calls = [node.exc for node in ast.walk(parsed(function)) if isinstance(node, ast.Raise)]
    return {call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_page(name):
    found = faults(PUBLIC[name])
    assert not found, f"{name}: " + "; ".join(found)


def test_the_list_names_what_there_is():
    assert {value.__name__ for value in PUBLIC.values()} >= OF_NO_PAPER


def undocumented(x):
    return x


def sloppy(array: jax.Array, size: int) -> jax.Array:
    """Computes something

    Args:
      array: an array.
    """
    if size < 0:
        raise ValueError("size")
    return array


class Half(NamedTuple):
    """A record of one field, ``first``."""

    first: int
    second: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (undocumented, ["no docstring"]),
        (
            sloppy,
            [
                "the first paragraph is no sentence: 'Computes something'",
                "the first sentence does not say what comes back: 'Computes something'",
                "Args has ['array'], the signature ['array', 'size']",
                "no shape for 'array'",
                "Raises does not name ValueError",
            ],
        ),
        (Half, ["field 'second' is not described"]),
    ],
)
def test_the_rules_find_what_is_wrong(value, expected):
    assert faults(value) == expected
