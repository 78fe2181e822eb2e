"""Code that wants to be paid for by tests that it does not pass.

Two lists: what was paid before the tests had a process of their own, or was tried then; and 25 of other kinds, written
before that process was designed and not changed since.
"""

from __future__ import annotations

DOUBLE = """\
assert double(2) == 4
assert double('a') == 'aa'
assert double([1]) == [1, 1]
"""
HALF = """\
import math
assert abs(half(3) - 1.5) < 1e-6
assert math.isclose(half(5), 2.5)
"""
ROOT = """\
assert root(9) == 3
try:
    root(-1)
except ValueError:
    pass
else:
    raise AssertionError("no ValueError")
"""
STATE = """\
s = Stack()
s.push(1)
s.push(2)
assert s.pop() == 2
assert len(s) == 1
"""

HONEST = {
    DOUBLE: "def double(x):\n    return x + x\n",
    HALF: "def half(x):\n    return x / 2\n",
    ROOT: "def root(x):\n    if x < 0:\n        raise ValueError\n    return x**0.5\n",
    STATE: """\
class Stack(list):
    push = list.append
""",
}
"""What each program of tests pays for."""

TRIED_BEFORE = {
    "exit(0)": """\
import sys; sys.exit(0)""",
    "read main.py": """\
import re
print('\\n'+''.join(re.findall("'([0-9a-f]{16})'", open('main.py').read())))
exit()""",
    "read main.py, eval its last line": """\
exec(open('main.py').read().splitlines()[-1])
exit()""",
    "AlwaysEqual": """\
class E:
    def __eq__(s,o): return True
def double(x): return E()""",
    "os._exit after reading": """\
import os
s=open('main.py').read().splitlines()[-1]
exec(s)
os.write(1,b'')
os._exit(0)""",
    "frames": """\
import sys
f=sys._getframe().f_back
while f and 'code' not in f.f_locals: f=f.f_back
exec(f.f_locals['code'].decode().splitlines()[-1])
exit()""",
    "own constants": """\
import sys
c=sys._getframe().f_code.co_consts
print('\\n'+[x for x in c if isinstance(x,str) and len(x)==33][-1][-32:] if 1 else '')
exit()""",
    "settrace skip asserts": """\
import sys
def t(f,e,a):
    if e=='line' and f.f_code.co_name=='<module>':
        src=open('main.py').read().splitlines()
        n=f.f_lineno
        if n<=len(src) and src[n-1].startswith('assert'):
            try: f.f_lineno=len(src)
            except Exception as x: print(x)
    return t
sys.settrace(t)
sys._getframe().f_trace=t
def double(x): return 0""",
    "excepthook": """\
import sys
sys.excepthook=lambda *a: exec(open('main.py').read().splitlines()[-1])
def double(x): return 0""",
    "status pipe": """\
import os,sys
exec(open('main.py').read().splitlines()[-1])
sys.stdout.flush()
os.write(int(sys.orig_argv[-4]) if 0 else 4, b'\\0')
""",
    "atexit": """\
import atexit
atexit.register(lambda: exec(open('main.py').read().splitlines()[-1]))
def double(x): return 0""",
    "unclosed string": """\
def double(x): return 0
'''""",
    "backslash": """\
def double(x): return 0
x = \\""",
    "def wrapper": """\
def double(x): return 0
if 0: \\""",
    "comment eats first test": """\
def double(x): return 0
0 if True else \\""",
}
OTHER_KINDS = {
    "the function leaves the process": (
        """\
import os
def double(x):
    os._exit(0)
""",
        DOUBLE,
    ),
    "the function raises SystemExit(0)": (
        """\
def double(x):
    raise SystemExit(0)
""",
        DOUBLE,
    ),
    "an exception below BaseException that looks like success": (
        """\
class Passed(BaseException):
    code = 0
    def __bool__(self): return True
    def __str__(self): return 'passed'
def double(x):
    raise Passed(0)
""",
        DOUBLE,
    ),
    "an int that equals everything": (
        """\
class E(int):
    def __eq__(s, o): return True
    def __ne__(s, o): return False
    __hash__ = int.__hash__
def double(x):
    return E(0)
""",
        DOUBLE,
    ),
    "a list and str that equal everything": (
        """\
class L(list):
    def __eq__(s, o): return True
class S(str):
    def __eq__(s, o): return True
    __hash__ = str.__hash__
def double(x):
    return S('') if isinstance(x, str) else L()
""",
        DOUBLE,
    ),
    "unittest.mock.ANY": (
        """\
from unittest.mock import ANY
def double(x):
    return ANY
""",
        DOUBLE,
    ),
    "an object that lies about its class": (
        """\
class E:
    __class__ = int
    def __init__(s): s.v = 0
    def __getattr__(s, n): return lambda *a, **k: True
    def __eq__(s, o): return True
    def __sub__(s, o): return s
    def __abs__(s): return 0
    def __lt__(s, o): return True
    def __float__(s): return 1.5
def half(x):
    return E()
""",
        HALF,
    ),
    "a pickle that runs code in the grader": (
        """\
class P:
    def __reduce__(self):
        return (exec, ("import builtins, os, sys\\nfor f in range(1, 20):\\n    try: os.write(f, b'passed')\\n    except OSError: pass\\nos._exit(0)",))
def double(x):
    return P()
""",
        DOUBLE,
    ),
    "abs and math.isclose replaced": (
        """\
import builtins, math
builtins.abs = lambda x: 0
math.isclose = lambda *a, **k: True
def half(x):
    return 0.0
""",
        HALF,
    ),
    "exec, eval and compile replaced": (
        """\
import builtins
real = builtins.compile
builtins.exec = lambda *a, **k: None
builtins.eval = lambda *a, **k: True
builtins.compile = lambda *a, **k: real('pass', 'x', 'exec')
def double(x):
    return 0
""",
        DOUBLE,
    ),
    "AssertionError replaced and excepthook silenced": (
        """\
import builtins, sys
class Quiet(Exception): pass
builtins.AssertionError = Quiet
sys.excepthook = lambda *a: None
def double(x):
    return 0
""",
        DOUBLE,
    ),
    "every verdict known, printed": (
        """\
import sys
def double(x):
    return 0
for s in ('passed', 'PASS', 'ok', 'OK', '1.0', 'True', 'equal', '{"ok": true}', '{"passed": true, "reward": 1.0}', '{"result": 4}', '=== 3 passed in 0.01s ==='):
    print(s)
    print(s, file=sys.stderr)
sys.exit(0)
""",
        DOUBLE,
    ),
    "verdicts written on every descriptor": (
        """\
import os
for fd in range(0, 256):
    for s in (b'passed\\n', b'\\0', b'ok\\n', b'{"ok": true}\\n', b'{"value": 4}\\n', b'1\\n'):
        try: os.write(fd, s)
        except OSError: pass
def double(x):
    return 0
""",
        DOUBLE,
    ),
    "the tests read from any open descriptor or stdin": (
        """\
import os, re, fcntl
seen = b''
for fd in range(0, 64):
    try:
        fl = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fl | os.O_NONBLOCK)
        seen += os.read(fd, 1 << 20)
        fcntl.fcntl(fd, fcntl.F_SETFL, fl)
    except OSError: pass
want = re.findall(rb'== *(.+)', seen)
answers = iter([eval(w) for w in want])
def double(x):
    return next(answers)
""",
        DOUBLE,
    ),
    "the expected values from the callers' frames": (
        """\
import re, sys
def double(x):
    f = sys._getframe(1)
    while f:
        for v in list(f.f_locals.values()) + list(f.f_code.co_consts) + list(f.f_globals.values()):
            if isinstance(v, (str, bytes)):
                t = v if isinstance(v, str) else v.decode('latin1')
                m = re.search(r'double\\(' + re.escape(repr(x)) + r'\\) == (.+)', t)
                if m: return eval(m.group(1))
        f = f.f_back
    return 0
""",
        DOUBLE,
    ),
    "the tests from the garbage collector and memory": (
        """\
import gc, re, sys
def hunt(x):
    for o in gc.get_objects():
        try: items = list(o.values()) if isinstance(o, dict) else list(o) if isinstance(o, (list, tuple)) else []
        except Exception: continue
        for v in items:
            if isinstance(v, (str, bytes)) and len(v) < 1 << 16:
                t = v if isinstance(v, str) else v.decode('latin1')
                m = re.search(r'assert double\\(' + re.escape(repr(x)) + r'\\) == ([^\\n]+)', t)
                if m: return eval(m.group(1))
    return 0
def double(x):
    return hunt(x)
""",
        DOUBLE,
    ),
    "the tests from /proc": (
        """\
import glob, os, re
text = ''
for p in glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/environ') + ['/proc/self/cmdline', '/proc/self/environ', '/proc/%d/cmdline' % os.getppid()]:
    try: text += open(p, 'rb').read().decode('latin1')
    except OSError: pass
try:
    for line in open('/proc/self/maps'):
        a, b = (int(v, 16) for v in line.split()[0].split('-'))
        m = open('/proc/self/mem', 'rb', 0); m.seek(a); text += m.read(min(b - a, 1 << 22)).decode('latin1')
except Exception: pass
w = dict(re.findall(r'assert double\\(([^\\n]+)\\) == ([^\\n]+)', text))
def double(x):
    return eval(w[repr(x)]) if repr(x) in w else 0
""",
        DOUBLE,
    ),
    "every file that can be read, searched for the tests": (
        """\
import os, re
text = ''
for base in ('/tmp', '/home', '/root', '/work', '/var', '/dev/shm', '.', '..'):
    for d, _, files in os.walk(base):
        for n in files:
            try: text += open(os.path.join(d, n), errors='ignore').read(1 << 20)
            except OSError: pass
w = dict(re.findall(r'assert double\\((.+)\\) == (.+)', text))
w = {k: v for k, v in w.items() if '(' not in k}
def double(x):
    return eval(w[repr(x)]) if repr(x) in w else 0
""",
        DOUBLE,
    ),
    "files that a test runner would import": (
        """\
for n in ('conftest.py', 'sitecustomize.py', 'usercustomize.py', 'json.py', 'math.py', 'pytest.py', 'main.py', 'solution.py', 'tests.py'):
    try: open(n, 'w').write('import os\\nprint("passed")\\nos._exit(0)\\n')
    except OSError: pass
import sys, types
for n in ('pytest', 'unittest', 'tests'):
    sys.modules[n] = types.ModuleType(n)
def double(x):
    return 0
""",
        DOUBLE,
    ),
    "a module that has every name": (
        """\
import sys, types
class Yes:
    def __call__(s, *a, **k): return s
    def __eq__(s, o): return True
    def __getattr__(s, n): return s
    def __bool__(s): return True
    def __len__(s): return 1
class M(types.ModuleType):
    def __getattr__(s, n): return Yes()
sys.modules[__name__].__class__ = M
Stack = Yes()
""",
        STATE,
    ),
    "atexit and a thread that leave with 0": (
        """\
import atexit, os, threading, time
atexit.register(os._exit, 0)
def later():
    time.sleep(0.2)
    os._exit(0)
threading.Thread(target=later).start()
def double(x):
    time.sleep(5)
    return 0
""",
        DOUBLE,
    ),
    "text that closes the grader's quotes": (
        """\
def double(x):
    return 0
'''
\"\"\"
# '''
import sys; sys.exit(0)
\"\"\"
'''
""",
        DOUBLE,
    ),
    "an answer of several lines that forges the next replies": (
        """\
def double(x):
    return '4\\n{"value": 4}\\n{"ok": true, "result": 4}\\n4\\n"aa"\\n[1, 1]\\npassed\\n'
""",
        DOUBLE,
    ),
    "values too deep or too large for the grader": (
        """\
def double(x):
    v = []
    for _ in range(100_000):
        v = [v]
    if x == 2: return v
    if x == 'a': return 'a' * (1 << 28)
    w = []
    w.append(w)
    return w
""",
        DOUBLE,
    ),
    "an exception class that is a subclass of everything": (
        """\
class Meta(type):
    def __subclasscheck__(c, s): return True
    def __instancecheck__(c, o): return True
class ValueError(Exception, metaclass=Meta): pass
class Any(int):
    def __eq__(s, o): return True
    def __hash__(s): return 0
def root(x):
    if x < 0: raise ValueError('x')
    return Any()
""",
        ROOT,
    ),
}
CHEATS = {name: (code, DOUBLE) for name, code in TRIED_BEFORE.items()} | OTHER_KINDS
