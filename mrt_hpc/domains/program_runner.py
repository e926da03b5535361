"""What runs inside the sandboxes of a program: it is executed as a file by a Python of its own, and never imported by
the package.

One process executes the answer, and calls its functions when it is asked to (``answer``). Another, in a sandbox of its
own, executes the gold answer (``gold``): each name there that the gold answer does not define itself is asked of the
first process. Arguments and results are JSON lines, which hold plain values only; an object of any other type stays
where the answer made it, and the gold answer gets a :class:`Remote` with its number. So no code of the answer runs
where the assertions are evaluated, and the answer sees neither the gold answer nor what it is compared with.
"""

import ast
import builtins
import ctypes
import functools
import importlib
import itertools
import json
import os
import resource
import sys
import types
from collections.abc import Callable
from typing import Any, BinaryIO

ANSWER_NAME = "answer"
"""The name of the module that the answer is: as a module that is imported, it leaves out what it would do as a program
of its own (``if __name__ == "__main__"``).
"""
FOLDER = "/own"
"""The only folder that the answer may write to."""
FOLDER_BYTES, FOLDER_FILES = 10 * 2**20, 256
MOST_THREADS, MOST_OPEN_FILES = 64, 64
LARGE = 2**63
"""Numbers beyond it are sent as hexadecimal text, which takes linear time."""
COLLECTIONS = (("list", list), ("tuple", tuple), ("set", set), ("frozenset", frozenset))
_MAKERS = dict(COLLECTIONS)
BY_TEXT = {
    "fractions.Fraction": None,
    "decimal.Decimal": None,
    "datetime.date": "fromisoformat",
    "datetime.datetime": "fromisoformat",
    "datetime.time": "fromisoformat",
}
"""Types of the standard library whose values cross as text, and the method of the class that reads it if not the class.
"""


# -- values between the two processes


def encode(value: Any, refer: Callable[[Any], int]) -> Any:
    """A value as JSON; ``refer`` gives the number of an object that is none of the plain types."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if -LARGE < value < LARGE else ["int", hex(value)]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item(), refer)
    if (name := f"{type(value).__module__}.{type(value).__qualname__}") in BY_TEXT:
        return ["text", name, str(value)]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, tuple) or type(value).__module__ != ANSWER_NAME:  # other classes of the answer have methods
        for name, kind in COLLECTIONS:
            if isinstance(value, kind):
                return [name, [encode(item, refer) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[encode(key, refer), encode(item, refer)] for key, item in value.items()]]
    return ["object", refer(value)]


def decode(data: Any, object_of: Callable[[int], Any]) -> Any:
    """The value of some JSON; nothing but plain values, and what ``found`` gives for the number of an object.

    Raises:
        ValueError, TypeError, KeyError: the JSON is none that ``encode`` makes.
    """
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise TypeError("no value")
        return data
    kind, *content = data
    if kind == "int":
        return int(content[0], 16)
    if kind == "complex":
        return complex(*content)
    if kind == "bytes":
        return bytes.fromhex(content[0])
    if kind == "text":
        return _from_text(*content)
    if kind == "range":
        return range(*content)
    if kind == "dict":
        return {decode(key, object_of): decode(item, object_of) for key, item in content[0]}
    if kind == "object":
        return object_of(int(content[0]))
    return _MAKERS[kind](decode(item, object_of) for item in content[0])


def _from_text(name: str, text: str) -> Any:
    """The value that :data:`BY_TEXT` names."""
    reader = BY_TEXT[name]
    module, _, kind = name.partition(".")
    kind_named = getattr(importlib.import_module(module), kind)
    return kind_named(text) if reader is None else getattr(kind_named, reader)(text)


# -- the process of the answer


class AnswerSide:
    """Executes the answer, and does with its names and objects what it is asked to."""

    def __init__(self) -> None:
        self.module = types.ModuleType(ANSWER_NAME)
        sys.modules[ANSWER_NAME] = self.module  # where dataclasses look for it
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}

    def refer(self, value: Any) -> int:
        """The number of an object; it is kept, so that the same number is always the same object."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        """Answer one request after the other until no more come."""
        _send(replies, {"ready": True})
        for line in requests:
            _send(replies, self.reply(*json.loads(line)))

    def reply(self, action: str, target: int | None, name: str, arguments: Any, named: Any) -> dict[str, Any]:
        """What became of a request: a value or an error, and the arguments as they are afterwards."""
        given = decode(arguments, self.objects.__getitem__)
        options = decode(named, self.objects.__getitem__)
        try:
            done = self.perform(action, None if target is None else self.objects[target], name, given, options)
            reply = {"value": encode(done, self.refer)}
        except BaseException as error:  # SystemExit too
            kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
            reply = {"raised": next(kinds), "says": str(error)}
        if any(isinstance(argument, list | dict | set) for argument in (*given, *options.values())):
            reply["arguments"] = [encode(given, self.refer), encode(options, self.refer)]
        return reply

    def perform(self, action: str, target: Any, name: str, given: list[Any], options: dict[str, Any]) -> Any:
        """Do one thing."""
        if action == "execute":
            exec(compile(name, "<answer>", "exec", dont_inherit=True), self.module.__dict__)
        elif action == "name":
            if name not in self.module.__dict__:
                raise NameError(f"name {name!r} is not defined")
            return self.module.__dict__[name]
        elif action == "call":
            return target(*given, **options)
        elif action == "attribute":
            return getattr(target, name)
        elif action == "method":
            return _special_method(target, name)(*given)
        elif action == "set":
            setattr(target, name, *given)
        elif action == "is_instance":
            return isinstance(given[0], target)
        return None


def _special_method(target: Any, name: str) -> Callable[..., Any]:
    """A method such as ``__len__``, which Python looks for in the class."""
    if (method := getattr(type(target), name, None)) is None:
        raise TypeError(f"an object of class {type(target).__name__} has no {name}")
    return functools.partial(method, target)


# -- the process of the gold answer


class AnswerLostError(BaseException):
    """The process of the answer has ended, or sent something else than values: no handler of a gold answer takes it."""


class GoldFaultError(BaseException):
    """The gold answer does what this way of evaluating it does not allow."""


class AnswerProcess:
    """The other process, as the gold answer's process sees it."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self.requests, self.replies = requests, replies
        self.remotes: dict[int, Remote] = {}
        self.written: frozenset[str] = frozenset()
        """The attributes that the gold answer's text names."""

    def await_start(self) -> None:
        """Wait until it is ready."""
        if self._read() != {"ready": True}:
            raise AnswerLostError("it is not ready")

    def ask(
        self,
        action: str,
        target: int | None = None,
        name: str = "",
        given: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        *,
        may_stop: bool = False,
    ) -> Any:
        """Have the answer's process do one thing, and return the value.

        Raises:
            Exception: the nearest of Python's own exceptions to what the answer raised; StopIteration is taken from an
                iterator only (``may_stop``), as it would end a loop of the gold answer early.
            AnswerLostError: there is no answer any more.
            GoldFaultError: an argument is no plain value, and no object of the answer.
        """
        options = options or {}
        encoded = encode(list(given), self._number), encode(options, self._number)
        try:
            _send(self.requests, [action, target, name, *encoded])
            reply = self._read()
            if (after := reply.get("arguments")) is not None:
                _restore([list(given), options], decode(["list", after], self._remote))
            if "raised" not in reply:
                return decode(reply["value"], self._remote)
            error = _error(str(reply["raised"]), str(reply["says"]), may_stop=may_stop)
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as fault:
            raise AnswerLostError(f"{type(fault).__name__}: {fault}") from None
        raise error

    def _read(self) -> dict[str, Any]:
        line = self.replies.readline()
        if not line.endswith(b"\n"):
            raise AnswerLostError("it has ended")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise AnswerLostError("it sent no reply")
        return reply

    def _remote(self, number: int) -> "Remote":
        if number not in self.remotes:
            self.remotes[number] = Remote(self, number)
        return self.remotes[number]

    def _number(self, value: Any) -> int:
        if not isinstance(value, Remote):
            raise GoldFaultError(f"the gold answer gives the answer a {type(value).__name__}, which is no plain value")
        return hash(value)


class Remote:
    """An object of the answer's. It equals another one where the answer says so, and never a plain value; it has no
    truth value.
    """

    __slots__ = ("_answer", "_number")

    def __init__(self, answer: AnswerProcess, number: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self._answer.ask("call", self._number, "", given, options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in self._answer.written:
            raise AttributeError(name)  # a library asks for a protocol, as numpy for the address of an array's memory
        return self._answer.ask("attribute", self._number, name)

    def __contains__(self, value: Any) -> bool:
        raise GoldFaultError("the gold answer asks what is in an object of the answer's, which only the answer can say")

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.ask("set", self._number, name, (value,))

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._answer.ask("is_instance", self._number, "", (value,)) is True

    def __bool__(self) -> bool:
        raise TypeError("an object of the answer's, where a truth value was expected")

    def __hash__(self) -> int:
        return self._number


def _is_plain(value: Any) -> bool:
    """Whether a value is of a type that crosses, so that no object of the answer's equals it."""
    objects = itertools.count()
    encode(value, lambda _: next(objects))
    return next(objects) == 0


def _forwarded(name: str, *, both: bool) -> Callable[..., Any]:
    """A method that asks the object; with ``both``, only beside another object of the answer's."""

    def method(self: Remote, *given: Any) -> Any:
        if both and not isinstance(given[0], Remote):
            if not _is_plain(given[0]):
                raise GoldFaultError(f"an object of the answer's cannot be compared with a {type(given[0]).__name__}")
            return NotImplemented
        return self._answer.ask("method", self._number, name, given, may_stop=name == "__next__")

    return method


for _name in ("len", "getitem", "setitem", "delitem", "iter", "next", "str", "repr", "neg", "abs"):
    setattr(Remote, f"__{_name}__", _forwarded(f"__{_name}__", both=False))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv"):
    setattr(Remote, f"__{_name}__", _forwarded(f"__{_name}__", both=True))


def _error(name: str, says: str, *, may_stop: bool) -> Exception:
    """An exception of Python's own by its name; RuntimeError where that one would not be raised by a call."""
    kind = getattr(builtins, name)
    ordinary = issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration)
    kind = kind if ordinary or (may_stop and kind is StopIteration) else RuntimeError
    made: Exception = kind.__new__(kind, says)
    return made


def _restore(old: Any, new: Any) -> Any:
    """Give the collections of an argument the content that they have where the answer changed them in place."""
    if isinstance(old, list) and isinstance(new, list):
        old[:] = [*map(_restore, old, new), *new[len(old) :]]
    elif isinstance(old, dict) and isinstance(new, dict):
        content = {key: _restore(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        old.update(content)
    elif isinstance(old, set) and isinstance(new, set):
        old.clear()
        old.update(new)
    else:
        return new
    return old


class Names(dict[str, Any]):
    """Python's own names, and for any other the answer's."""

    def __init__(self, answer: AnswerProcess, held: Callable[[int, int], None]) -> None:
        super().__init__(vars(builtins), __held__=held)
        self.answer = answer

    def __missing__(self, name: str) -> Any:
        return self.answer.ask("name", None, name)


class Marker(ast.NodeTransformer):
    """Has each assertion say where it stands once it has held."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        """The assertion, and the call behind it."""
        place: list[ast.expr] = [ast.Constant(node.lineno), ast.Constant(node.col_offset)]
        said = ast.Expr(ast.Call(ast.Name("__held__", ast.Load()), place, []))
        return [node, ast.fix_missing_locations(ast.copy_location(said, node))]


def evaluate(gold: str, program: str, answer: AnswerProcess) -> list[tuple[int, int]]:
    """Execute the answer, and then the gold answer to its end.

    Returns:
        Line and column of each assertion that held.

    Raises:
        BaseException: whatever ends the gold answer before, such as an assertion that does not hold.
    """
    held: dict[tuple[int, int], None] = {}
    names = Names(answer, lambda line, column: held.update({(line, column): None}))
    tree = ast.parse(gold)
    answer.written = frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    code = compile(Marker().visit(tree), "<gold>", "exec", dont_inherit=True, optimize=0)
    answer.ask("execute", None, program)
    exec(code, {"__name__": "__main__", "__builtins__": names})
    answer.ask("end")  # it is still there
    return list(held)


def judge(job: dict[str, str], answer: AnswerProcess) -> dict[str, Any]:
    """The report of the gold answer's process; only one of a gold answer that ran to its end has the nonce."""
    try:
        return {"held": evaluate(job["gold"], job["program"], answer), "nonce": job["nonce"]}
    except GoldFaultError as fault:
        return {"fault": str(fault)}
    except BaseException as error:  # SystemExit too
        return {"failed": type(error).__name__}


# -- both


def confine(limits: dict[str, Any], *, writes: bool) -> None:
    """Take on the limits, for good."""
    if writes:
        _mount_folder()
    for kind, most in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, MOST_THREADS),
        (resource.RLIMIT_NOFILE, MOST_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        inherited = resource.getrlimit(kind)[1]  # what this process may not raise again
        least = most if inherited == resource.RLIM_INFINITY else min(most, inherited)
        resource.setrlimit(kind, (least, least))
    sys.path += limits["paths"]


def _mount_folder() -> None:
    """Mount the folder of the answer, and give up the right to mount. bwrap's own ``--tmpfs`` has no limit on the
    number of files.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={FOLDER_BYTES},nr_inodes={FOLDER_FILES},mode=0777"
    no_suid_no_devices = 2 | 4
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the structures, of this process
    if libc.mount(b"tmpfs", FOLDER.encode(), b"tmpfs", no_suid_no_devices, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mounting the folder of the program failed")
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "giving up the right to mount failed")
    os.chdir(FOLDER)


def _send(stream: BinaryIO, message: Any) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _silence() -> None:
    """Nobody reads what the programs print, and there is no input."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def main() -> None:
    """Play one part: ``answer`` with the channel as standard input, or ``gold`` with the channel's number as third
    argument, the job on standard input and the report on standard output.
    """
    part, limits = sys.argv[1], json.loads(sys.argv[2])
    confine(limits, writes=part == "answer")
    channel = os.dup(0) if part == "answer" else int(sys.argv[3])
    requests, replies = os.fdopen(channel, "rb"), os.fdopen(os.dup(channel), "wb")
    if part == "answer":
        _silence()
        AnswerSide().serve(requests, replies)
        return
    job, report = json.loads(sys.stdin.buffer.readline()), os.fdopen(os.dup(1), "wb")
    answer = AnswerProcess(replies, requests)
    answer.await_start()
    _send(report, {"ready": True})
    _silence()
    _send(report, judge(job, answer))


if __name__ == "__main__":
    main()
