"""What runs inside the sandbox: it limits itself, waits for a program, and runs it.

Sent as text to `python -c`, so it knows nothing of turnsmith, and imports only what is built into every interpreter or
needed in any case. By the time it runs, the namespaces and the filter of system calls are in place.
"""

import posix
import sys


def limit(seconds: int, memory: int, disk: int) -> None:
    """Lower the limits of this process for good; any failure ends it before it has read the program."""
    import resource

    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def read() -> bytes:
    """The program, from standard input: its length in eight bytes, then itself. The program itself has no input."""
    size = int.from_bytes(first_bytes(), "little")
    code = b""
    while len(code) < size:
        piece = posix.read(0, size - len(code))
        if not piece:  # whoever started this has gone
            sys.exit(1)
        code += piece
    posix.close(0)
    _, closed = posix.pipe()  # the end to read from takes the lowest free number, which is 0
    posix.close(closed)
    return code


def first_bytes() -> bytes:
    """The length of the program; until it is there, get ready for what costs most when done for the first time."""
    posix.set_blocking(0, False)
    try:
        return posix.read(0, 8)
    except BlockingIOError:
        exec(compile("", "main.py", "exec"), {})  # noqa: S102  (makes all types of syntax trees: 1.5 ms)
    finally:
        posix.set_blocking(0, True)
    return posix.read(0, 8)


def run(code: bytes) -> int:
    """Run the program as Python runs a script, and give its exit code."""
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
        return leave(end.code)
    except BaseException as error:
        flush()
        shown = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this function
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        return 1
    return 0


def leave(code: object) -> int:
    """What `sys.exit(code)` means."""
    if code is None or isinstance(code, int):
        return (code or 0) & 255
    sys.stderr.write(f"{code}\n")
    return 1


def flush() -> None:
    """Bring what was printed into the pipe; the program may have closed or replaced its output."""
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001
        pass


def main() -> None:
    """Limit, read, run, say how it ended."""
    import atexit

    status, *most = map(int, sys.argv[1:])
    limit(*most)
    posix.close(posix.open(".null", posix.O_CREAT | posix.O_WRONLY))  # what /dev/null is in the sandbox
    # What is printed must be in the pipe when the program is stopped, in the order it was printed in.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    posix.write(status, b"r")
    code = 1
    try:
        code = run(read())
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        flush()
    finally:
        # At once: nothing is left that would need Python's own, slower way to end.
        posix.write(status, bytes([code]))
        posix._exit(code)  # pyright: ignore[reportPrivateUsage]


if __name__ == "__main__":
    main()
