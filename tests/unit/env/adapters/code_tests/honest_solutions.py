"""Honest solutions of many kinds, and tests that pay for them."""

from __future__ import annotations

HONEST = {
    "a function": (
        """\
def add(a, b):
    return a + b
""",
        """\
assert add(2, 2) == 4
assert add('a', 'b') == 'ab'
""",
    ),
    "HumanEval's check": (
        """\
from typing import List

def has_close(numbers: List[float], threshold: float) -> bool:
    s = sorted(numbers)
    return any(b - a < threshold for a, b in zip(s, s[1:]))
""",
        """\
METADATA = {'author': 'x'}

def check(candidate):
    assert candidate([1.0, 2.0, 3.9, 4.0], 0.3) == True
    assert candidate([1.0, 2.0, 3.0], 0.5) == False

check(has_close)
""",
    ),
    "MBPP's asserts": (
        """\
def remove_Occ(s, ch):
    i = s.find(ch)
    s = s[:i] + s[i + 1:]
    j = s.rfind(ch)
    return s[:j] + s[j + 1:]
""",
        """\
assert remove_Occ('hello','l') == 'heo'
assert remove_Occ('abcda','a') == 'bcd'
""",
    ),
    "the name of a builtin": (
        """\
import math
def sum(a, b):
    return __builtins__.sum(i for i in range(1, min(a, b)) if a % i == b % i == 0) if False else __import__('builtins').sum(i for i in range(1, min(a, b) + 1) if a % i == b % i == 0)
""",
        """\
assert sum(10, 15) == 6
assert sum(100, 150) == 93
""",
    ),
    "a class": (
        """\
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
""",
        """\
s = Stack()
s.push(1)
s.push([2])
assert len(s) == 2
assert s.pop() == [2]
assert s.items == [1]
assert s
""",
    ),
    "a class with operators of containers": (
        """\
class Grid:
    def __init__(self): self.cells = {}
    def __setitem__(self, k, v): self.cells[k] = v
    def __getitem__(self, k): return self.cells[k]
    def __delitem__(self, k): del self.cells[k]
    def __iter__(self): return iter(self.cells)
""",
        """\
g = Grid()
g[1, 2] = 'x'
assert g[1, 2] == 'x'
assert list(g) == [(1, 2)]
assert (1, 2) in g
del g[1, 2]
assert list(g) == []
""",
    ),
    "inheritance and properties": (
        """\
class Shape:
    name = 'shape'
    @property
    def area(self): return 0
class Square(Shape):
    name = 'square'
    def __init__(self, a): self.a = a
    @property
    def area(self): return self.a ** 2
    @classmethod
    def unit(cls): return cls(1)
""",
        """\
q = Square(3)
assert q.area == 9
q.a = 4
assert q.area == 16
assert Square.unit().area == 1
assert Square.name == 'square' and Shape().area == 0
""",
    ),
    "objects as arguments": (
        """\
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
def reverse(node):
    last = None
    while node: node.next, last, node = last, node, node.next
    return last
""",
        """\
n = reverse(Node(1, Node(2, Node(3))))
seen = []
while n is not None:
    seen.append(n.value)
    n = n.next
assert seen == [3, 2, 1]
""",
    ),
    "a generator": (
        """\
def squares(n):
    for i in range(n):
        yield i * i
""",
        """\
assert list(squares(4)) == [0, 1, 4, 9]
g = squares(2)
assert next(g) == 0
""",
    ),
    "an endless generator": (
        """\
def primes():
    n = 2
    while True:
        if all(n % d for d in range(2, int(n ** .5) + 1)): yield n
        n += 1
""",
        """\
from itertools import islice
assert list(islice(primes(), 5)) == [2, 3, 5, 7, 11]
""",
    ),
    "recursion": (
        """\
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
""",
        """\
assert [fib(i) for i in range(15)][-1] == 377
""",
    ),
    "deep recursion": (
        """\
import sys
sys.setrecursionlimit(20000)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
""",
        """\
assert depth(5000) == 5000
""",
    ),
    "floats": (
        """\
def mean(xs):
    return sum(xs) / len(xs)
""",
        """\
assert abs(mean([0.1, 0.2]) - 0.15) < 1e-9
assert mean([1, 2]) == 1.5
""",
    ),
    "a module that the tests do not import": (
        """\
import math
def root(x):
    return math.sqrt(x)
""",
        """\
assert math.isclose(root(2), 1.4142135, rel_tol=1e-6)
""",
    ),
    "infinity and nan": (
        """\
def divide(a, b):
    return a / b if b else float('nan') if a == 0 else float('inf')
""",
        """\
import math
assert math.isnan(divide(0, 0))
assert divide(1, 0) == math.inf
""",
    ),
    "big numbers": (
        """\
def power(a, b):
    return a ** b
""",
        """\
assert power(2, 20_000) == 1 << 20_000
assert power(-3, 99) == -(3 ** 99)
""",
    ),
    "nested containers": (
        """\
def group(words):
    out = {}
    for w in words: out.setdefault(len(w), []).append((w, {w}))
    return out
""",
        """\
assert group(['a', 'bb', 'c']) == {1: [('a', {'a'}), ('c', {'c'})], 2: [('bb', {'bb'})]}
""",
    ),
    "sets, bytes and complex numbers": (
        """\
def parts(s):
    return frozenset(s), s.encode(), complex(len(s), 1), bytearray(b'x'), None, ...
""",
        """\
assert parts('ab')[:5] == (frozenset('ab'), b'ab', 2+1j, bytearray(b'x'), None)
""",
    ),
    "counters and other dicts": (
        """\
from collections import Counter, OrderedDict, defaultdict
def count(s):
    return Counter(s), OrderedDict(a=1), defaultdict(list, b=[1])
""",
        """\
assert count('aab') == ({'a': 2, 'b': 1}, {'a': 1}, {'b': [1]})
""",
    ),
    "named tuples and enums": (
        """\
from collections import namedtuple
from enum import IntEnum
P = namedtuple('P', 'x y')
class C(IntEnum):
    RED = 1
def point():
    return P(1, C.RED)
""",
        """\
assert point() == (1, 1)
""",
    ),
    "exceptions that are expected": (
        """\
def root(x):
    if x < 0: raise ValueError('negative: %d' % x)
    return x ** .5
""",
        """\
assert root(9) == 3
try:
    root(-1)
    assert False, 'no error'
except ValueError as e:
    assert str(e) == 'negative: -1'
""",
    ),
    "exceptions of a class of its own": (
        """\
class Empty(LookupError): pass
def first(xs):
    if not xs: raise Empty('nothing')
    return xs[0]
""",
        """\
assert first([3]) == 3
failed = False
try:
    first([])
except LookupError:
    failed = True
assert failed
""",
    ),
    "arguments that are changed": (
        """\
def sort(xs):
    xs.sort()
    xs.append(99)
def rename(d):
    d['b'] = d.pop('a')
    d['b'].append(1)
""",
        """\
xs = [3, 1, 2]
assert sort(xs) is None
assert xs == [1, 2, 3, 99]
inner = []
d = {'a': inner}
rename(d)
assert d == {'b': [1]}
""",
    ),
    "nested arguments that are changed": (
        """\
def flip(grid):
    for row in grid:
        row.reverse()
""",
        """\
a = [1, 2]
grid = [a, [3]]
flip(grid)
assert grid == [[2, 1], [3]] and a == [2, 1]
""",
    ),
    "functions as arguments": (
        """\
def apply(f, xs, key=None):
    return sorted(map(f, xs), key=key)
""",
        """\
assert apply(lambda x: -x, [1, 2]) == [-2, -1]
assert apply(str, [10, 9], key=len) == ['9', '10']
""",
    ),
    "functions as results": (
        """\
def adder(n):
    def add(x):
        return x + n
    return add
""",
        """\
assert adder(2)(3) == 5
add = adder(1)
assert [add(i) for i in range(3)] == [1, 2, 3]
""",
    ),
    "keywords, defaults and many arguments": (
        """\
def show(*args, sep='-', **more):
    return sep.join(map(str, args)) + str(sorted(more))
""",
        """\
assert show(1, 2, sep='+', a=1) == "1+2['a']"
""",
    ),
    "a context manager": (
        """\
class Log:
    def __init__(self): self.lines = []
    def __enter__(self):
        self.lines.append('in')
        return self
    def __exit__(self, *e): self.lines.append('out')
""",
        """\
log = Log()
with log as inside:
    assert inside.lines == ['in']
assert log.lines == ['in', 'out']
""",
    ),
    "prints and a main block": (
        """\
def double(x):
    print('doubling', x)
    return x + x

if __name__ == '__main__':
    print(double(2))
    import sys
    print('done', file=sys.stderr)
""",
        """\
assert double(2) == 4
assert double('a') == 'aa'
""",
    ),
    "tests in unittest": (
        """\
def slug(s):
    return '-'.join(s.lower().split())
""",
        """\
import unittest

class TestSlug(unittest.TestCase):
    def test_it(self):
        self.assertEqual(slug('A b'), 'a-b')
    def test_type(self):
        with self.assertRaises(AttributeError):
            slug(3)

unittest.main()
""",
    ),
}
