"""The code that runs inside the sandbox: it limits itself, waits for a program, and executes it.

Passed as text to `python -c`, so it cannot import turnsmith; it imports only modules that are built into the
interpreter or needed anyway. When it starts, the namespaces and the system call filter are in place.
"""

import posix
import sys


def set_limits(seconds: int, memory: int, disk: int) -> None:
    """Lower the resource limits of this process for good; any failure ends it before it has read the program."""
    import resource

    assert sys.platform == "linux"
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def read_program() -> bytes:
    """Read the program from standard input, its length in eight bytes first.

    The program itself gets no input, unless the highest bit is set.
    """
    size = int.from_bytes(read_length(), "little")
    keeps_input, size = size >> 63, size & (1 << 63) - 1
    code = b""
    while len(code) < size:
        piece = posix.read(0, size - len(code))
        if not piece:  # the parent process has gone
            sys.exit(1)
        code += piece
    if keeps_input:
        return code
    posix.close(0)
    _, write_end = posix.pipe()  # the read end takes the lowest free number, which is 0
    posix.close(write_end)
    return code


def read_length() -> bytes:
    """Read the length of the program; while there is none yet, warm up what is slow the first time."""
    posix.set_blocking(0, False)
    try:
        return posix.read(0, 8)
    except BlockingIOError:
        exec(compile("", "main.py", "exec"), {})  # noqa: S102  (creates all AST types: 1.5 ms)
    finally:
        posix.set_blocking(0, True)
    return posix.read(0, 8)


def execute(code: bytes) -> int:
    """Execute the program as Python executes a script; returns its exit code."""
    import builtins

    main = type(sys)("__main__")
    main.__file__ = "main.py"
    sys.modules["__main__"] = main
    sys.argv = ["main.py"]
    builtins.exit = builtins.quit = sys.exit  # pyright: ignore[reportAttributeAccessIssue]
    # In a file, so that tracebacks show its lines.
    with open("main.py", "wb") as file:  # noqa: PTH123
        file.write(code)
    try:
        exec(compile(code, "main.py", "exec"), main.__dict__)  # noqa: S102
    except SystemExit as end:
        return exit_code(end.code)
    except BaseException as error:
        flush()
        traceback = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this function
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 1
    return 0


def exit_code(code: object) -> int:
    """The exit code that `sys.exit(code)` stands for."""
    if code is None or isinstance(code, int):
        return (code or 0) & 255
    sys.stderr.write(f"{code}\n")
    return 1


def flush() -> None:
    """Write buffered output to the pipe; the program may have closed or replaced `sys.stdout`."""
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001
        pass


def execute_in_sandbox() -> None:
    """Set the limits, read the program, execute it, report its exit code."""
    import atexit

    status, *limits = map(int, sys.argv[1:])
    set_limits(*limits)
    posix.close(posix.open(".null", posix.O_CREAT | posix.O_WRONLY))  # /dev/null links to it
    # Output must be in the pipe, in the order it was printed, when the program is killed.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    posix.write(status, b"r")
    code = 1
    try:
        code = execute(read_program())
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        flush()
    finally:
        # Skip the interpreter's slower shutdown: nothing is left to clean up.
        posix.write(status, bytes([code]))
        posix._exit(code)  # pyright: ignore[reportPrivateUsage]


if __name__ == "__main__":
    execute_in_sandbox()
