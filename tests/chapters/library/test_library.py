"""Checks the library's C interface without PyTorch: python3 test_library.py LIBBOOK

Runs kernels on small problems, in memory that the library allocates, and compares with attention computed here in
Python's floats, which are double. Standard library only.
"""

import ctypes
import math
import pathlib
import random
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "chapters" / "library"))
sys.dont_write_bytecode = True
import book  # noqa: E402

LIBRARY = None


def round_bf16(x):
    """The nearest number that bf16 has, of two the even one."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def encode(values, element):
    if element == "fp32":
        return struct.pack(f"<{len(values)}f", *values)
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def decode(data, element):
    if element == "fp32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


class DeviceArray:
    """Numbers in device memory; without any, room for `size`, full of NaN."""

    def __init__(self, element, values=None, size=None):
        self.element = element
        data = None if values is None else encode(values, element)
        self.bytes = len(data) if data is not None else size * (4 if element == "fp32" else 2)
        self.pointer = LIBRARY.allocate(self.bytes)
        if data is not None:
            LIBRARY.copy_to_device(self.pointer, data, self.bytes)

    def read(self):
        data = ctypes.create_string_buffer(self.bytes)
        LIBRARY.copy_to_host(data, self.pointer, self.bytes)
        return decode(data.raw, self.element)

    def __del__(self):
        LIBRARY.free(self.pointer)


def numbers(count, element, seed):
    """Not around zero: what is left out must show."""
    generator = random.Random(seed)
    values = [struct.unpack("<f", struct.pack("<f", generator.gauss(0.3, 1)))[0] for _ in range(count)]
    return values if element == "fp32" else [round_bf16(v) for v in values]


def at(p, name, values, b, row, head):
    s = p.strides.get(name, p.dense(name))
    begin = b * s[0] + row * s[1] + head * s[2]
    return values[begin : begin + p.head_dim]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def attend(p, q, k, v, b, head, i):
    """The keys that a query sees, their weights, its row of O and its LSE."""
    kv = head // (p.heads_q // p.heads_kv)
    diagonal = i + p.seqlen_kv - p.seqlen_q
    keys = [j for j in range(p.seqlen_kv) if -p.left <= j - diagonal <= p.right]
    scores = [p.scale() * dot(at(p, "q", q, b, i, head), at(p, "k", k, b, j, kv)) for j in keys]
    if not keys:
        return keys, [], [0.0] * p.head_dim, -math.inf
    most = max(scores)
    total = math.fsum(math.exp(s - most) for s in scores)
    weights = [math.exp(s - most) / total for s in scores]
    o = [math.fsum(w * at(p, "v", v, b, j, kv)[d] for w, j in zip(weights, keys)) for d in range(p.head_dim)]
    return keys, weights, o, most + math.log(total)


def elements(p, name):
    """What the array takes up under its strides."""
    s = p.strides.get(name, p.dense(name))
    of_keys = name in ("k", "v", "dk", "dv")
    rows, heads = (p.seqlen_kv, p.heads_kv) if of_keys else (p.seqlen_q, p.heads_q)
    return (p.batch - 1) * s[0] + (rows - 1) * s[1] + (heads - 1) * s[2] + p.head_dim


def inputs(p):
    return {name: numbers(elements(p, name), p.element, seed) for seed, name in enumerate(("q", "k", "v"))}


def kernel(chapter, name=None):
    found = [k for k in LIBRARY.kernels if k.chapter == chapter and name in (None, k.name)]
    return found[-1]


def run(chosen, p, arrays):
    size = LIBRARY.workspace_bytes(chosen, p)
    workspace = DeviceArray("fp32", size=(size + 3) // 4) if size else None
    pointers = {name: array.pointer.value for name, array in arrays.items()}
    call = LIBRARY.bind(chosen, p, pointers, workspace.pointer if workspace else None, size)
    call.prepare()
    call.run()
    LIBRARY.synchronize()


class TestLibrary(unittest.TestCase):

    def check_forward(self, chosen, p, tolerance):
        values = inputs(p)
        arrays = {name: DeviceArray(p.element, x) for name, x in values.items()}
        arrays["o"] = DeviceArray(p.element, size=elements(p, "o"))
        arrays["lse"] = DeviceArray("fp32", size=p.batch * p.heads_q * p.seqlen_q)
        run(chosen, p, arrays)
        o, lse = arrays["o"].read(), arrays["lse"].read()
        for b in range(p.batch):
            for head in range(p.heads_q):
                for i in range(p.seqlen_q):
                    _, _, row, row_lse = attend(p, values["q"], values["k"], values["v"], b, head, i)
                    got = lse[(b * p.heads_q + head) * p.seqlen_q + i]
                    if math.isinf(row_lse):
                        self.assertEqual(got, row_lse)
                    else:
                        self.assertLess(abs(got - row_lse), 1e-5 * max(1, abs(row_lse)))
                    for x, y in zip(at(p, "o", o, b, i, head), row):
                        self.assertTrue(
                            abs(x - y) <= tolerance, f"o of batch {b}, query {i}, head {head}: {x}, not {y}"
                        )

    def test_lists_the_kernels_of_the_chapters(self):
        names = [(k.chapter, k.name) for k in LIBRARY.kernels]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(names, sorted(names, key=lambda n: n[0]), "in the order of the book")
        self.assertEqual(sorted({k.chapter[:2] for k in LIBRARY.kernels}), [f"{i:02}" for i in range(2, 13)])
        forward = kernel("08_async_copy", "lazy_rescale")
        self.assertEqual(
            (forward.direction, forward.on_host, set(forward.elements), forward.deterministic),
            ("forward", False, {"bf16", "fp16"}, True),
        )
        self.assertTrue(forward.summary)
        self.assertEqual(kernel("05_warp_shuffle", "exp2").elements, ("fp32",))
        self.assertTrue(kernel("03_online_softmax").on_host)
        backward = [k for k in LIBRARY.kernels if k.chapter == "06_recompute_backward"]
        self.assertEqual({k.direction for k in backward}, {"backward"})
        self.assertFalse(kernel("06_recompute_backward", "kv_outer").deterministic)
        self.assertTrue(kernel("06_recompute_backward", "deterministic").deterministic)

    def test_says_what_it_runs_on(self):
        machine = LIBRARY.machine()
        self.assertTrue(machine["name"])
        self.assertEqual(machine["emulated"], machine["name"] == "emulator")

    def test_forward_in_fp32(self):
        # Two query heads a KV head, causal with more keys than queries, rows apart: a slice of a fused projection.
        p = book.Problem("fp32", 1, 2, 1, 9, 13, 32, right=0, strides={"k": (13 * 64, 64, 32), "v": (13 * 64, 64, 32)})
        for name in ("shuffle", "exp2"):
            self.check_forward(kernel("05_warp_shuffle", name), p, 2e-6)

    def test_a_window_that_shows_a_row_nothing(self):
        p = book.Problem("fp32", 2, 1, 1, 7, 4, 32, left=1, right=0, softmax_scale=0.25)
        self.check_forward(kernel("05_warp_shuffle"), p, 2e-6)

    def test_forward_in_bf16(self):
        p = book.Problem("bf16", 1, 1, 1, 18, 21, 64, right=0)
        self.check_forward(kernel("08_async_copy"), p, 0.03)
        for chapter in ("10_wgmma", "11_tma_pipeline", "12_warp_specialization"):
            self.check_forward(kernel(chapter), p, 0.03)
        p.right = book.UNLIMITED
        self.check_forward(kernel("07_tensor_cores"), p, 0.03)

    def check_backward(self, chapter, p, tolerance):
        """All of the chapter's backward kernels."""
        rounding = round_bf16 if p.element == "bf16" else lambda x: x
        values = inputs(p)
        values["dout"] = numbers(elements(p, "o"), p.element, 7)
        values["dlse"] = numbers(p.heads_q * p.seqlen_q, "fp32", 8)
        values["o"], values["lse"] = [0.0] * elements(p, "o"), [0.0] * (p.heads_q * p.seqlen_q)
        want = {name: [0.0] * elements(p, name) for name in ("dq", "dk", "dv")}
        for head in range(p.heads_q):
            for i in range(p.seqlen_q):
                keys, weights, o, lse = attend(p, values["q"], values["k"], values["v"], 0, head, i)
                o = [rounding(x) for x in o]
                values["lse"][head * p.seqlen_q + i] = lse
                begin = (i * p.heads_q + head) * p.head_dim
                values["o"][begin : begin + p.head_dim] = o
                dout = at(p, "dout", values["dout"], 0, i, head)
                d = dot(dout, o) - values["dlse"][head * p.seqlen_q + i]
                q = at(p, "q", values["q"], 0, i, head)
                for j, weight in zip(keys, weights):
                    ds = p.scale() * weight * (dot(dout, at(p, "v", values["v"], 0, j, 0)) - d)
                    k = at(p, "k", values["k"], 0, j, 0)
                    for x in range(p.head_dim):
                        want["dq"][begin + x] += ds * k[x]
                        want["dk"][j * p.head_dim + x] += ds * q[x]
                        want["dv"][j * p.head_dim + x] += weight * dout[x]
        kernels = [k for k in LIBRARY.kernels if k.direction == "backward" and k.chapter == chapter]
        self.assertTrue(kernels)
        for chosen in kernels:
            arrays = {
                name: DeviceArray("fp32" if name in ("lse", "dlse") else p.element, x) for name, x in values.items()
            }
            arrays.update({name: DeviceArray(p.element, size=len(x)) for name, x in want.items()})
            run(chosen, p, arrays)
            for name, gradient in want.items():
                for i, (x, y) in enumerate(zip(arrays[name].read(), gradient)):
                    allowed = tolerance * max(1, abs(y))
                    self.assertTrue(abs(x - y) <= allowed, f"{chosen.name}: {name}[{i}] is {x}, not {y}")

    def test_backward_in_fp32(self):
        p = book.Problem("fp32", 1, 2, 1, 6, 10, 32, right=0)
        self.check_backward("06_recompute_backward", p, 2e-5)

    def test_backward_in_bf16(self):
        p = book.Problem("bf16", 1, 2, 1, 6, 10, 64, right=0)
        self.check_backward("09_tensor_core_backward", p, 0.05)

    def refused(self, words, call):
        with self.assertRaises(book.Refused) as caught:
            call()
        self.assertIn(words, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_refuses_with_a_sentence(self):
        chosen = kernel("08_async_copy", "row_tiles")
        good = dict(element="bf16", batch=1, heads_q=2, heads_kv=1, seqlen_q=8, seqlen_kv=8, head_dim=64)

        def require(**changed):
            return lambda: LIBRARY.require(chosen, book.Problem(**{**good, **changed}))

        require()()
        self.refused("head_dim", require(head_dim=48))
        self.refused("fp32", require(element="fp32"))
        self.refused("heads_q", require(heads_q=3, heads_kv=2))
        self.refused("batch", require(batch=0))
        self.refused("left", require(left=-1))
        self.refused("scale", require(softmax_scale=math.nan))
        self.refused("stride", require(strides={"q": (0, 65, 64)}))
        book.ELEMENTS["fp8"] = 3
        self.refused("allowed: 0 (fp32), 1 (bf16), 2 (fp16)", require(element="fp8"))
        del book.ELEMENTS["fp8"]

    def test_refuses_wrong_arguments(self):
        p = book.Problem("fp32", 1, 1, 1, 4, 4, 32)
        values = {name: DeviceArray("fp32", x) for name, x in inputs(p).items()}
        values["o"] = DeviceArray("fp32", size=elements(p, "o"))
        values["lse"] = DeviceArray("fp32", size=4)
        pointers = {name: array.pointer.value for name, array in values.items()}
        chosen = kernel("05_warp_shuffle")
        self.refused("k is null", LIBRARY.bind(chosen, p, {**pointers, "k": None}).run)
        self.refused("16 bytes", LIBRARY.bind(chosen, p, {**pointers, "v": pointers["v"] + 4}).run)
        three = kernel("02_naive_gpu")
        self.refused("the workspace has 0 bytes", LIBRARY.bind(three, p, pointers).run)
        self.refused("workspace is null", LIBRARY.bind(three, p, pointers, None, 1 << 20).run)
        count = len(LIBRARY.kernels)
        for number in (-1, count):
            self.assertEqual(LIBRARY.c.book_kernel(number, ctypes.byref(book.CKernel())), 2)
            self.assertIn(f"allowed: 0 to {count - 1}", LIBRARY.c.book_last_error().decode())
        self.assertEqual(LIBRARY.c.book_require(0, None), 2)
        self.assertEqual(LIBRARY.c.book_run(0, ctypes.byref(p.to_c()), None, None, 0), 2)
        self.assertEqual(LIBRARY.c.book_machine(None), 2)

    def test_refuses_another_version(self):
        with self.assertRaises(book.Refused) as caught:
            book.Library(sys.argv[1], interface=book.INTERFACE + 1)
        self.assertIn("version", str(caught.exception))
        self.assertEqual(LIBRARY.c.book_check_interface(0), 2)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("test_library.py: the path of libbook.so is missing", file=sys.stderr)
        sys.exit(2)
    LIBRARY = book.Library(sys.argv[1])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
