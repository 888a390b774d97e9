"""Checks what compare.py and peers.py say without PyTorch, how peers.py measures, and its tables: python3 test_peers.py

Standard library only. Results and times are made up here.
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "chapters" / "library"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True
import peers  # noqa: E402

KERNEL, HEADER = "a" * 64, "b" * 64


def cell(causal, seconds, direction="forward"):
    """Two rounds; lazy_rescale takes 1.25 times FlashAttention-2's time in one of them, 2.5 times in the other."""
    rows = [
        ("flash", None, [1, 1, 1, 1]),
        ("cudnn", None, [0.5, 0.5, 0.5, 0.5]),
        ("row_tiles", "08_async_copy", [1, 1, 1, 1]),
        ("lazy_rescale", "08_async_copy", [1.25, 1.25, 2.5, 2.5]),
        ("mma", "07_tensor_cores", [4, 4, 4, 4]),
    ]
    return {
        "pass": direction,
        "element": "bf16",
        "head_dim": 64,
        "causal": causal,
        "seqlen": 1024,
        "batch": 16,
        "heads": 32,
        "copies": 2,
        "flops": 5e12,
        "skipped": [],
        "rows": [
            {"name": n, "chapter": c, "seconds": s[0] * seconds, "samples": [x * seconds for x in s]}
            for n, c, s in rows
        ],
    }


RESULT = {
    "format": 1,
    "machine": {"name": "A GPU", "multiprocessors": 1, "driver": "1.2", "cuda": "13.0", "clock_khz": 1},
    "pytorch": {"version": "2.11", "cuda": "13.0", "cudnn": 91900},
    "date": "2026-01-02",
    "commit": "0123456789abcdef-dirty",
    "seen": [],
    "common": {"gpu/launch.cuh": HEADER},
    "hashes": {"07_tensor_cores": {"a.cuh": KERNEL}, "08_async_copy": {"a.cuh": KERNEL}},
    "cells": [cell(False, 0.05), cell(True, 0.02)],
}


class Book(unittest.TestCase):
    """A book of two chapters, one of which has a place for the table."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        for chapter in ("07_tensor_cores", "08_async_copy"):
            (self.root / "chapters" / chapter).mkdir(parents=True)
        (self.root / "docs" / "results").mkdir(parents=True)
        (self.root / "chapters" / "07_tensor_cores" / "README.md").write_text("# Seven\n")
        self.readme = self.root / "chapters" / "08_async_copy" / "README.md"
        self.readme.write_text("# Eight\n<!-- peers:08 -->\nold\n<!-- /peers -->\nend\n")
        self.write(RESULT)
        self.hashes = self.root / "hashes"
        self.present(KERNEL, HEADER)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, result):
        (self.root / "docs" / "results" / "a-gpu-peers.json").write_text(json.dumps(result))

    def present(self, kernel, header, more=""):
        self.hashes.write_text(
            f"{kernel}  chapters/07_tensor_cores/a.cuh\n{kernel}  chapters/08_async_copy/a.cuh\n"
            f"{header}  common/gpu/launch.cuh\n{more}"
        )

    def tables(self, *words, status=0):
        done = subprocess.run(
            [sys.executable, "-B", SCRIPTS / "peers.py", "tables", self.root, "--hashes", self.hashes, *words],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr

    def test_writes_the_table_between_the_markers(self):
        self.assertIn("chapters/08_async_copy/README.md", self.tables("--check", status=1))
        self.assertIn("old", self.readme.read_text())
        self.tables()
        text = self.readme.read_text()
        self.assertTrue(
            text.startswith("# Eight\n<!-- peers:08 -->\n\nA GPU, driver 1.2, CUDA 13.0; PyTorch 2.11, cuDNN 9.19.0;")
        )
        self.assertTrue(text.endswith("\n\n<!-- /peers -->\nend\n"))
        self.assertIn("commit `0123456789ab-dirty`", text)
        self.assertIn(
            "| head_dim | mask | N | FlashAttention-2 | cuDNN | `row_tiles` | `lazy_rescale` | "
            "`row_tiles` × FlashAttention-2 | `row_tiles` × best peer |",
            text,
        )
        self.assertIn("| 64 | none | 1024 | 100 | 200 | 100 | 80 | 1.00x (1.00 … 1.00) | 0.50x (0.50 … 0.50) |", text)
        self.assertIn("| 64 | causal | 1024 | 250 | 500 | 250 | 200 |", text)
        self.assertIn("- `row_tiles`: 1.00x FlashAttention-2, 0.50x the best peer", text)
        self.assertNotIn("mma", text)
        self.assertNotIn("tale", text)
        self.assertEqual(self.tables("--check"), "")
        self.assertEqual((self.root / "chapters" / "07_tensor_cores" / "README.md").read_text(), "# Seven\n")

    def test_ratios_are_those_of_the_best_kernel(self):
        """Best by the geometric mean of all cells, not in one cell, nor by its place."""
        slower = [cell(False, 0.05) for _ in range(3)]
        for one in slower[:2]:  # lazy_rescale is four times as fast in two of three cells
            row = peers.row_of(one, "lazy_rescale", "08_async_copy")
            row["samples"] = [x / 4 for x in row["samples"]]
        self.write({**RESULT, "cells": slower})
        self.tables()
        text = self.readme.read_text()
        self.assertIn("| `lazy_rescale` × FlashAttention-2 | `lazy_rescale` × best peer |", text)
        self.assertIn("| 0.60x (0.44 … 0.76) | 0.30x (0.22 … 0.38) |", text)

    def test_without_the_base_the_best_peer_decides(self):
        cells = [{**c, "rows": [row for row in c["rows"] if row["name"] != "flash"]} for c in RESULT["cells"]]
        self.write({**RESULT, "cells": cells})
        self.tables()
        text = self.readme.read_text()
        self.assertIn("| `row_tiles` × best peer |", text)
        self.assertIn("| - | 0.50x (0.50 … 0.50) |", text)

    def test_marks_what_is_stale(self):
        self.tables()
        self.present(KERNEL, HEADER, f"{KERNEL}  common/gpu/tma.cuh\n")
        self.assertEqual(self.tables("--check"), "", "a header that is new makes nothing stale")
        for kernel, header in ((HEADER, HEADER), (KERNEL, KERNEL)):
            self.present(kernel, header)
            self.tables("--check", status=1)
            self.tables()
            self.assertIn("`lazy_rescale` (stale)", self.readme.read_text())
            self.assertIn("have changed since", self.readme.read_text())
            self.present(KERNEL, HEADER)
            self.tables()

    def test_without_results_says_how_to_get_them(self):
        (self.root / "docs" / "results" / "a-gpu-peers.json").unlink()
        self.tables()
        self.assertIn("./learn bench --peers", self.readme.read_text())

    def test_shows_both_passes(self):
        self.write({**RESULT, "cells": RESULT["cells"] + [cell(True, 0.02, "backward")]})
        self.tables()
        self.assertIn("Forward, bf16, TFLOP/s", self.readme.read_text())
        self.assertIn("Backward, bf16, TFLOP/s", self.readme.read_text())

    def test_refuses_what_it_cannot_read(self):
        before = self.readme.read_text()
        for broken in ({**RESULT, "format": 2}, {k: v for k, v in RESULT.items() if k != "cells"}, []):
            self.write(broken)
            self.assertIn("holds no results of ./learn bench --peers", self.tables(status=2))
        self.write(RESULT)
        self.assertEqual(self.readme.read_text(), before)
        self.readme.write_text("<!-- peers:07 -->\n<!-- /peers -->\n")
        self.assertIn("'<!-- peers:08 -->'", self.tables(status=2))
        self.readme.write_text("<!-- /peers -->\n<!-- peers:08 -->\n")
        self.assertIn("once each", self.tables(status=2))


class CountedRounds:
    """A timer: every launch of the first round takes 1 s, of the second 2 s, and so on."""

    on_gpu = False

    def __init__(self):
        self.rounds = 0

    def queue(self, launches):
        self.rounds += 1
        for launch in launches:
            launch()
        return [self.rounds] * len(launches)


class Rounds(unittest.TestCase):

    def launched(self, seed, rounds=20, names="ABCD"):
        """(The names in the order of their launches, a list a round; the contenders.)"""
        log = []
        contenders = [peers.Contender(name, None, lambda copy, name=name: log.append(name), None) for name in names]
        cell = types.SimpleNamespace(seed=seed, next_copy=lambda: 0)
        timed = peers.time_in_rounds(None, CountedRounds(), cell, contenders, rounds, [])
        self.assertEqual(timed, contenders, "the rows of the file keep their order")
        a_round = 2 * len(names)
        self.assertEqual(len(log), rounds * a_round)
        return [log[i : i + a_round] for i in range(0, len(log), a_round)], contenders

    def test_each_round_is_a_palindrome_of_all(self):
        for order in self.launched(seed=1)[0]:
            self.assertEqual(sorted(order), sorted("ABCD" * 2))
            self.assertEqual(order, order[::-1])

    def test_two_samples_a_round_side_by_side(self):
        for contender in self.launched(seed=1, rounds=3)[1]:
            self.assertEqual(contender.samples, [1, 1, 2, 2, 3, 3])

    def test_who_is_far_slower_takes_part_in_the_first_rounds(self):
        took = {"fast": 0.001, "near": 0.008, "far": 0.0081}

        class Warmed:
            on_gpu = True

            def queue(self, launches):
                return [took[launch()] for launch in launches]

        contenders = [peers.Contender(name, None, lambda copy, name=name: name, None) for name in took]
        cell = types.SimpleNamespace(seed=1, next_copy=lambda: 0)
        peers.time_in_rounds(None, Warmed(), cell, contenders, 6, [])
        self.assertEqual({c.name: len(c.samples) for c in contenders}, {"fast": 12, "near": 12, "far": 8})

    def test_places_and_neighbours_change(self):
        orders = self.launched(seed=1)[0]
        for place in range(4):
            self.assertEqual({order[place] for order in orders}, set("ABCD"), place)
        before = {pair for order in orders for pair in zip(order, order[1:4])}
        self.assertEqual(len(before), 4 * 3, "everyone was launched right after everyone else")

    def test_the_order_can_be_had_again(self):
        self.assertEqual(self.launched(seed=1)[0], self.launched(seed=1)[0])
        self.assertNotEqual(self.launched(seed=1)[0], self.launched(seed=2)[0])


class FirstForward(unittest.TestCase):
    """Who makes O and LSE for a backward."""

    def launched(self, *refusing):
        log = []

        def contender(torch, library, kernel, *rest):
            if kernel.name in refusing:
                raise peers.book.Refused(f"{kernel.name} needs Hopper")
            return types.SimpleNamespace(launch=lambda copy: log.append((kernel.name, copy)))

        kernels = [types.SimpleNamespace(name=name) for name in "ABC"]
        cell = types.SimpleNamespace(describe=lambda direction: "a cell")
        with unittest.mock.patch.object(peers, "book_contender", contender):
            peers.launch_first(None, None, kernels, cell, None, {}, 3)
        return log

    def test_the_first_that_takes_the_problem(self):
        self.assertEqual(self.launched(), [("A", 3)])
        self.assertEqual(self.launched("A", "B"), [("C", 3)])

    def test_nobody(self):
        with self.assertRaisesRegex(peers.book.Failed, "no forward takes a cell: A needs Hopper; B needs Hopper; C"):
            self.launched("A", "B", "C")


class Stopped(unittest.TestCase):
    """A rehearsal without PyTorch and kernels: what measure does around the cells."""

    def rehearse(self, *of_cells):
        """(Status or what was raised, output, whether a file was written), where each cell gives or raises its own."""
        fake = unittest.mock.MagicMock()
        fake.Library.return_value.machine.return_value = {**RESULT["machine"], "emulated": True}
        fake.Library.return_value.kernels = []
        fake.ELEMENTS, fake.Refused, fake.Failed = peers.book.ELEMENTS, peers.book.Refused, peers.book.Failed
        fake.Cell.return_value.describe.return_value = "a cell"
        torch = unittest.mock.MagicMock(__version__="2.11")
        torch.version.cuda = "13.0"
        said = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            unittest.mock.patch.dict(sys.modules, {"torch": torch, "accuracy": fake}),
            unittest.mock.patch.multiple(peers, book=fake, Cell=fake.Cell, gpu_seen=lambda when: []),
            unittest.mock.patch.object(peers, "measure_cell", side_effect=of_cells),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            path = pathlib.Path(folder) / "out.json"
            try:
                status = peers.measure(["--library", "libbook.so", "--rehearse", str(path)])
            except Exception as error:
                status = error
            return status, said.getvalue(), path.exists()

    def test_to_the_end(self):
        status, said, written = self.rehearse(*[cell(False, 0.05)] * 12)
        self.assertEqual((status, written), (0, True), said)
        self.assertIn("a cell (1 of 12)\n", said)
        self.assertIn("a cell (12 of 12)\n", said)
        self.assertNotIn("nothing was written", said)

    def test_not_to_the_end(self):
        unforeseen = RuntimeError("illegal address")
        for error, wanted in (
            (peers.book.Failed("08 is wrong"), 1),
            (KeyboardInterrupt(), 130),
            (unforeseen, unforeseen),
        ):
            status, said, written = self.rehearse(cell(False, 0.05), cell(True, 0.05), error)
            self.assertEqual((status, written), (wanted, False), said)
            self.assertTrue(said.endswith("peers: 2 of 12 cells were measured; nothing was written\n"), said)


class CommandLines(unittest.TestCase):

    def expect_refused(self, words, script, *arguments):
        """One line on standard error, exit code 2. A PyTorch that may be here is hidden."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "torch.py").write_text("raise ImportError('hidden')\n")
            done = subprocess.run(
                [sys.executable, "-B", SCRIPTS / script, *arguments],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": folder},
            )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_without_pytorch(self):
        self.expect_refused("'pip install torch'", "compare.py", "--library", "libbook.so")
        self.expect_refused(
            "'pip install torch'",
            "peers.py",
            "measure",
            "--library",
            "libbook.so",
            "--hashes",
            "h",
            "--commit",
            "c",
            "--out",
            ".",
        )

    def test_wrong_arguments(self):
        self.expect_refused("--library", "compare.py")
        self.expect_refused("--fast", "compare.py", "--library", "libbook.so", "--fast")
        self.expect_refused("allowed: measure, tables", "peers.py")
        self.expect_refused("allowed: measure, tables", "peers.py", "fly")
        self.expect_refused("unknown argument '--fast'", "peers.py", "measure", "--fast")
        self.expect_refused("--library needs a value", "peers.py", "measure", "--library")
        self.expect_refused("fp32, fp16 or bf16", "peers.py", "measure", "--library", "libbook.so", "--dtype", "fp8")
        self.expect_refused("are needed", "peers.py", "measure", "--library", "libbook.so")
        self.expect_refused("the book's folder", "peers.py", "tables")
        self.expect_refused("'no-such-file' cannot be read", "peers.py", "tables", ".", "--hashes", "no-such-file")

    def test_arithmetic(self):
        self.assertEqual(peers.ratio([2, 4, 6, 6], [1, 2, 3, 3]), {"median": 2.0, "low": 2.0, "high": 2.0})
        self.assertEqual(peers.percentile([3, 1, 2], 0.5), 2)
        self.assertEqual(peers.slug("NVIDIA H200"), "nvidia-h200")


if __name__ == "__main__":
    unittest.main()
