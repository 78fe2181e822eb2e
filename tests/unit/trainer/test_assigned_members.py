"""Which members of other packages `turnsmith.trainer.verl` replaces by assigning them: read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import turnsmith

FOLDER = Path(turnsmith.__file__).parent / "trainer" / "verl"
OF_SERVERS = {
    # Managers of rollout servers, which start a load balancer, and the keys on the ports of servers.
    "verl.trainer.ppo.v1.trainer_base.LLMServerManager",
    "verl.trainer.ppo.v1.trainer_separate_async.LLMServerManager",
    "verl.workers.rollout.utils.run_uvicorn",
}


def imported(tree: ast.AST) -> dict[str, set[str]]:
    """What each name may stand for: what is imported under it, or what a loop takes from a tuple of such names."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                names.setdefault(one.asname or one.name, set()).add(f"{node.module}.{one.name}")
        elif isinstance(node, ast.Import):
            for one in node.names:
                whole = one.name if one.asname else one.name.partition(".")[0]
                names.setdefault(one.asname or whole, set()).add(whole)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and isinstance(node.iter, ast.Tuple | ast.List)
        ):
            for one in node.iter.elts:
                if isinstance(one, ast.Name):
                    names.setdefault(node.target.id, set()).update(names.get(one.id, set()))
    return names


def assigned(text: str) -> Iterator[str]:
    """The members of imported modules and classes that a source assigns, also by `setattr`."""
    tree = ast.parse(text)
    names = imported(tree)
    for node in ast.walk(tree):
        path = ""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            path = ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            last = node.args[1].value if isinstance(node.args[1], ast.Constant) else "*"
            path = f"{ast.unparse(node.args[0])}.{last}"
        name, _, rest = path.partition(".")
        yield from (f"{whole}.{rest}" for whole in names.get(name, ()))


def test_no_member_of_verl_is_assigned_for_training_and_checkpoint_engines() -> None:
    found = {one for file in FOLDER.rglob("*.py") for one in assigned(file.read_text())}
    of_verl = {one for one in found if one.startswith("verl.")}
    assert of_verl == OF_SERVERS
    assert {one for one in found if one.startswith("transfer_queue.")}, "those that keys are put on were not found"


def test_every_way_to_assign_is_found() -> None:
    text = """
import verl.utils.model as model
import verl
from verl.utils import fsdp_utils, distributed
from verl.engine import Engine
def f():
    model.load = 1
    verl.utils.x.y = 2
    setattr(fsdp_utils, "select", 3)
    Engine.load: int = 4
    Engine.other, own.x = 5, 6
    for module in (fsdp_utils, distributed):
        module.start = 7
"""
    assert sorted(assigned(text)) == [
        "verl.engine.Engine.load",
        "verl.engine.Engine.other",
        "verl.utils.distributed.start",
        "verl.utils.fsdp_utils.select",
        "verl.utils.fsdp_utils.start",
        "verl.utils.model.load",
        "verl.utils.x.y",
    ]
