"""Each environment's own global generators: those of `random`, of `numpy.random` and torch's for the CPU.

Most environments seed a global generator in `reset` and draw from it later, and hundreds of them share a process. So
here a draw in an environment's call, whatever name it was imported by, is made from a generator of that environment
alone. It is found by a context variable, which tasks and the environment's own threads inherit; draws outside of such
calls are made from the process's generators, as ever.

numpy and torch are not imported here: what they need is done when somebody imports them.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, Token
from functools import partial
from importlib.machinery import ModuleSpec
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

_of_process = random.Random()
"""What is drawn from outside of environments."""
_lock = threading.Lock()
_is_installed = False
_torch_mode: Callable[[], Any] | None = None
"""Makes what leads torch's draws in a thread to their generator; None as long as torch is not loaded."""
_torch_lock = threading.Lock()
_thread = threading.local()


class Generators:
    """The generators of one environment, each as if it had been seeded with the episode's seed before `__init__`.

    Example:
        >>> install()
        >>> def draw(seed):
        ...     token = enter(Generators(seed))
        ...     yield random.random()
        ...     leave(token)
        >>> [*draw(1), *draw(2)] == [random.Random(1).random(), random.Random(2).random()]
        True
    """

    __slots__ = ("_made", "seed", "torch_state")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.torch_state: Any = None
        """The state of torch's generator; None: not drawn from yet."""
        self._made: dict[str, Any] = {}

    @property
    def python(self) -> random.Random:
        """The generator of `random`."""
        return self._made.get("python") or self._made.setdefault("python", random.Random(self.seed))

    @property
    def numpy(self) -> Any:
        """The `RandomState` of `numpy.random`."""
        found = self._made.get("numpy")
        if found is None:
            made = sys.modules["numpy.random"].RandomState(self.seed % 2**32)
            found = self._made.setdefault("numpy", made)  # another thread of the environment may have been first
        return found


_current: ContextVar[Generators | None] = ContextVar("turnsmith_generators", default=None)


def drawn_from() -> Generators | None:
    """The generators that are drawn from in this context: those of the environment whose call this is."""
    return _current.get()


def draw_from(generators: Generators | None) -> None:
    """Draw from these generators in this context for good; its thread is prepared by `enter_thread`."""
    _current.set(generators)


def enter(generators: Generators | None) -> Token[Generators | None]:
    """Draw from these generators in this context from now on; `leave` with the token that it returns."""
    if generators is not None:
        enter_thread()
    return _current.set(generators)


def leave(token: Token[Generators | None]) -> None:
    """Draw from the generators that were there before `enter`."""
    _current.reset(token)


def enter_thread() -> None:
    """Prepare this thread for draws of torch, if it is loaded: a thread that environments' calls are made in."""
    if _torch_mode is not None and not hasattr(_thread, "torch_mode"):
        _thread.torch_mode = _torch_mode()
        _thread.torch_mode.__enter__()  # for good: async methods of several environments take turns in one thread


def is_prepared() -> bool:
    """Whether this thread has been prepared; if not, another one has imported torch since `enter_thread`."""
    return _torch_mode is None or hasattr(_thread, "torch_mode")


def install() -> None:
    """Have the global generators of this process look for the environment that draws. Once is enough."""
    global _is_installed
    with _lock:
        if _is_installed:
            return
        _is_installed = True
        _install_python()
        os.register_at_fork(after_in_child=_reseed)
        threading.Thread.start = _start_thread  # pyright: ignore[reportAttributeAccessIssue]
        ThreadPoolExecutor.submit = _submit
        for name, prepare in _WHEN_IMPORTED.items():
            if name in sys.modules:
                prepare()
        sys.meta_path.insert(0, _Finder())  # pyright: ignore[reportArgumentType]


def _python() -> random.Random:
    generators = _current.get()
    return _of_process if generators is None else generators.python


def _reseed() -> None:
    """What Python does after a fork, so that children do not draw the same."""
    _of_process.seed()
    _python().seed()


def _install_python() -> None:
    shared: Any = random._inst  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
    _of_process.setstate(shared.getstate())
    own = _leading(random.Random, _python)
    own.__reduce__ = lambda self: (_shared_python, ())
    # Methods of this object were imported by name everywhere: with another class they ask it for each bit.
    shared.__class__ = own
    _replace(shared, shared)


def _shared_python() -> Any:
    """For pickles: functions of a script that were imported by name stay those of the global generator."""
    install()
    return random._inst  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]


def _leading(base: type, generator: Callable[[], Any]) -> Any:
    """A subclass whose methods are those of the object that `generator` returns at each call."""

    def leading(name: str) -> Callable[..., Any]:
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(generator(), name)(*args, **kwargs)

        method.__name__ = method.__qualname__ = name
        method.__doc__ = getattr(base, name).__doc__
        return method

    names = [name for name in dir(base) if not name.startswith("_") and callable(getattr(base, name))]
    body: dict[str, Any] = {name: leading(name) for name in names}
    if base is random.Random:  # read by copies of `gauss`
        body["gauss_next"] = property(
            lambda self: generator().gauss_next, lambda self, value: setattr(generator(), "gauss_next", value)
        )
    return type(base.__name__, (base,), body)


def _replace(old: Any, new: Any) -> None:
    """Give all modules that have imported a generator, or methods of it by name, those of another one."""
    for module in list(sys.modules.values()):
        try:
            names = vars(module)
        except TypeError:
            continue
        for name, value in list(names.items()):
            if value is old and names is not globals():
                names[name] = new
            elif type(value) in (BuiltinMethodType, MethodType) and value.__self__ is old:
                names[name] = getattr(new, value.__name__)


def _numpy() -> Any:
    generators = _current.get()
    return _numpy_of_process if generators is None else generators.numpy


_numpy_of_process: Any = None


def _install_numpy() -> None:
    global _numpy_of_process
    module: Any = importlib.import_module("numpy.random")
    _numpy_of_process = shared = module.mtrand._rand
    own = _leading(module.RandomState, _numpy)
    leading = own()
    own.__reduce__ = lambda self: (_shared_numpy, ())
    # For the functions of numpy that exchange the bit generator.
    own._bit_generator = property(lambda self: _numpy()._bit_generator)
    own._initialize_bit_generator = lambda self, bit_generator: _numpy()._initialize_bit_generator(bit_generator)
    _replace(shared, leading)


def _shared_numpy() -> Any:
    install()
    return importlib.import_module("numpy.random").mtrand._rand


def _install_torch() -> None:
    global _torch_mode
    torch: Any = importlib.import_module("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class OwnGenerator(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if _current.get() is None or torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
                return func(*args, **(kwargs or {}))
            return _with_torch_state(shared, lambda: func(*args, **(kwargs or {})))

    shared = torch.default_generator
    torch.random.default_generator = _TorchGenerator(shared)  # what `torch.manual_seed` and its like use
    _torch_mode = OwnGenerator
    if _current.get() is not None:
        enter_thread()  # it was imported in a call


class _TorchGenerator:
    """Torch's default generator, as its Python functions see it: with the state of the environment."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._shared, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: _with_torch_state(self._shared, lambda: value(*args, **kwargs))


def _with_torch_state(shared: Any, call: Callable[[], Any]) -> Any:
    generators = _current.get()
    if generators is None:
        return call()
    with _torch_lock:
        others = shared.get_state()
        if generators.torch_state is None:
            shared.manual_seed(generators.seed % 2**63)
        else:
            shared.set_state(generators.torch_state)
        try:
            return call()
        finally:
            generators.torch_state = shared.get_state()
            shared.set_state(others)


_WHEN_IMPORTED = {"numpy.random": _install_numpy, "torch": _install_torch}


class _Finder:
    """Prepares a module as soon as it is imported, before anybody else gets it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Find the module as the others do; None: not one of ours."""
        prepare = _WHEN_IMPORTED.get(name)
        if prepare is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec: ModuleSpec | None = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_prepare(module: ModuleType) -> None:
                execute(module)
                prepare()

            loader.exec_module = execute_and_prepare
        return spec


def _run_with(generators: Generators, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = enter(generators)
    try:
        return function(*args, **kwargs)
    finally:
        leave(token)


_plain_start = threading.Thread.start
_plain_submit = ThreadPoolExecutor.submit


def _start_thread(thread: threading.Thread) -> None:
    """`Thread.start`: a thread that an environment starts draws from its generators."""
    if (generators := _current.get()) is not None:
        thread.run = partial(_run_with, generators, thread.run)
    _plain_start(thread)


def _submit(executor: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`ThreadPoolExecutor.submit`: the threads may have been started by another environment."""
    if (generators := _current.get()) is not None:
        function = partial(_run_with, generators, function)
    return _plain_submit(executor, function, *args, **kwargs)
