"""The chapters' kernels from Python: the C interface of book.h through ctypes, on addresses or on PyTorch's tensors.

Standard library only. A call that the library refuses raises Refused, one that fails on the device raises Failed, both
with the library's sentence.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field

INTERFACE = 1
UNLIMITED = 1 << 30
ELEMENTS = {"fp32": 0, "bf16": 1, "fp16": 2}
PASSES = {"forward": 0, "backward": 1}
GRADIENTS = ("dout", "dq", "dk", "dv")


class Failed(RuntimeError):
    """The device, or a kernel on it."""


class Refused(ValueError):
    """An argument, or a problem that the kernel does not take. Nothing was launched."""


class CKernel(Structure):
    _fields_ = [
        ("chapter", c_char_p),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("pass_", c_int32),
        ("memory", c_int32),
        ("elements", c_int32),
        ("deterministic", c_int32),
    ]


class CStrides(Structure):
    _fields_ = [("batch", c_int64), ("seq", c_int64), ("head", c_int64)]


class CProblem(Structure):
    _fields_ = [
        ("element", c_int32),
        ("batch", c_int32),
        ("heads_q", c_int32),
        ("heads_kv", c_int32),
        ("seqlen_q", c_int32),
        ("seqlen_kv", c_int32),
        ("head_dim", c_int32),
        ("left", c_int32),
        ("right", c_int32),
        ("softmax_scale", c_float),
    ] + [(name, CStrides) for name in ("q", "k", "v", "o") + GRADIENTS]


class CArrays(Structure):
    _fields_ = [(name, c_void_p) for name in ("q", "k", "v", "o", "lse", "dout", "dlse", "dq", "dk", "dv")]


class CMachine(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("driver", c_char_p),
        ("cuda", c_char_p),
        ("emulated", c_int32),
        ("multiprocessors", c_int32),
        ("clock_khz", c_int32),
        ("compute_capability", c_int32),
    ]


@dataclass(frozen=True)
class Kernel:
    """One of the library's kernels."""

    number: int
    chapter: str  # "08_async_copy"
    name: str
    summary: str
    direction: str  # "forward" or "backward"
    on_host: bool  # its arrays are on the host, whatever the library was built for
    elements: tuple  # of "fp32", "bf16", "fp16"
    deterministic: bool


@dataclass
class Problem:
    """One attention call; the fields of BookProblem. Strides are (batch, seq, head), dense where they are missing."""

    element: str
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    head_dim: int
    left: int = UNLIMITED
    right: int = UNLIMITED
    softmax_scale: float = None
    strides: dict = field(default_factory=dict)

    def scale(self):
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    def dense(self, name):
        of_keys = name in ("k", "v", "dk", "dv")
        heads = self.heads_kv if of_keys else self.heads_q
        row = heads * self.head_dim
        return ((self.seqlen_kv if of_keys else self.seqlen_q) * row, row, self.head_dim)

    def to_c(self):
        c = CProblem(
            ELEMENTS[self.element],
            self.batch,
            self.heads_q,
            self.heads_kv,
            self.seqlen_q,
            self.seqlen_kv,
            self.head_dim,
            self.left,
            self.right,
            self.scale(),
        )
        for name in ("q", "k", "v", "o") + GRADIENTS:
            setattr(c, name, CStrides(*self.strides.get(name, self.dense(name))))
        return c


class Library:
    """A built libbook.so. Raises OSError if it cannot be loaded, Refused if it speaks another version."""

    def __init__(self, path, interface=INTERFACE):
        self.c = ctypes.CDLL(str(path))
        self.c.book_last_error.restype = c_char_p
        self.c.book_free.restype = None
        self.c.book_free.argtypes = [c_void_p]
        arguments = {
            "book_check_interface": [c_int],
            "book_kernel": [c_int, POINTER(CKernel)],
            "book_machine": [POINTER(CMachine)],
            "book_require": [c_int, POINTER(CProblem)],
            "book_workspace_bytes": [c_int, POINTER(CProblem), POINTER(c_size_t)],
            "book_prepare": [c_int, POINTER(CProblem), POINTER(CArrays), c_void_p, c_size_t],
            "book_run": [c_int, POINTER(CProblem), POINTER(CArrays), c_void_p, c_size_t],
            "book_synchronize": [],
            "book_allocate": [c_size_t, POINTER(c_void_p)],
            "book_copy_to_device": [c_void_p, c_void_p, c_size_t],
            "book_copy_to_host": [c_void_p, c_void_p, c_size_t],
        }
        for name, types in arguments.items():
            function = getattr(self.c, name)
            function.argtypes = types
            function.restype = c_int
        self.check(self.c.book_check_interface(interface))
        self.kernels = [self._kernel(number) for number in range(self.c.book_kernel_count())]

    def check(self, status):
        if status != 0:
            sentence = self.c.book_last_error().decode()
            raise (Refused if status == 2 else Failed)(sentence)

    def _kernel(self, number):
        c = CKernel()
        self.check(self.c.book_kernel(number, byref(c)))
        return Kernel(
            number=number,
            chapter=c.chapter.decode(),
            name=c.name.decode(),
            summary=c.summary.decode(),
            direction="backward" if c.pass_ == PASSES["backward"] else "forward",
            on_host=c.memory == 0,
            elements=tuple(name for name, bit in ELEMENTS.items() if c.elements >> bit & 1),
            deterministic=bool(c.deterministic),
        )

    def machine(self):
        c = CMachine()
        self.check(self.c.book_machine(byref(c)))
        return {
            "name": c.name.decode(),
            "driver": c.driver.decode(),
            "cuda": c.cuda.decode(),
            "emulated": bool(c.emulated),
            "multiprocessors": c.multiprocessors,
            "clock_khz": c.clock_khz,
            "compute_capability": c.compute_capability,
        }

    def require(self, kernel, problem):
        self.check(self.c.book_require(kernel.number, byref(problem.to_c())))

    def workspace_bytes(self, kernel, problem):
        size = c_size_t()
        self.check(self.c.book_workspace_bytes(kernel.number, byref(problem.to_c()), byref(size)))
        return size.value

    def bind(self, kernel, problem, addresses, workspace=None, workspace_bytes=0):
        """A call, to be run often: its arguments are made once. `addresses` by the names of BookArrays."""
        return Call(self, kernel.number, problem.to_c(), CArrays(**addresses), workspace, workspace_bytes)

    def synchronize(self):
        self.check(self.c.book_synchronize())

    def allocate(self, size):
        pointer = c_void_p()
        self.check(self.c.book_allocate(size, byref(pointer)))
        return pointer

    def free(self, pointer):
        self.c.book_free(pointer)

    def copy_to_device(self, to, source, size):
        self.check(self.c.book_copy_to_device(to, source, size))

    def copy_to_host(self, to, source, size):
        self.check(self.c.book_copy_to_host(to, source, size))


class Call:
    """One kernel on one set of arrays. Keeps the addresses, not what is there."""

    def __init__(self, library, number, problem, arrays, workspace, workspace_bytes):
        self.library = library
        self.arguments = (number, byref(problem), byref(arrays), workspace, workspace_bytes)

    def prepare(self):
        self.library.check(self.library.c.book_prepare(*self.arguments))

    def run(self):
        """Launches. Does not wait."""
        self.library.check(self.library.c.book_run(*self.arguments))


def tensor_problem(element, tensors, left=UNLIMITED, right=UNLIMITED, softmax_scale=None):
    """The problem that tensors [batch, seqlen, heads, head_dim] pose, strides included."""
    q, k = tensors["q"], tensors["k"]
    return Problem(
        element=element,
        batch=q.shape[0],
        heads_q=q.shape[2],
        heads_kv=k.shape[2],
        seqlen_q=q.shape[1],
        seqlen_kv=k.shape[1],
        head_dim=q.shape[3],
        left=left,
        right=right,
        softmax_scale=softmax_scale,
        strides={name: tuple(t.stride()[:3]) for name, t in tensors.items() if name not in ("lse", "dlse")},
    )


def addresses(tensors):
    """By name, where each tensor's elements start."""
    return {name: t.data_ptr() for name, t in tensors.items() if t is not None}
