"""The chapters' kernels beside PyTorch's attention, on one GPU, in one process and on the same tensors.

    peers.py measure --library FILE --hashes FILE --commit COMMIT --out FOLDER   what ./learn bench --peers runs
    peers.py measure --library FILE --rehearse FILE [--dtype fp32|fp16|bf16]     the same, small, on the emulator
    peers.py tables ROOT --hashes FILE [--check]                                 tables in ROOT/chapters/*/README.md

measure writes FOLDER/<gpu>-peers.json. Every result is checked first, on rows drawn from all heads (accuracy.py). Then
all contenders are launched in rounds A B C C B A, each launch on the next of several copies of the inputs, timed by
CUDA events. A round is queued whole behind a short wait, so that a launch's time is the GPU's and not Python's. Who is
A, B and C is drawn anew for each round: the GPU rests during the wait, and a launch after one that heats it may find a
lower clock, so that a place, or neighbours, that never change would be part of the result. The draws are seeded by the
cell's size: another run has the same.

A rehearsal goes the same way on the CPU and writes the file it is given; its times say nothing.

Ends with 0; with 1 where a chapter's result is wrong, the device failed or --check found another table; with 2 for a
wrong argument, or where PyTorch or a GPU is missing; with 130 where measure is interrupted.
"""

import datetime
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
import warnings

import book

FORMAT = 1
NO_TORCH = (
    "peers: python3 has no PyTorch 2.5 or later, which brings the other libraries' attention; "
    "'pip install torch' does"
)
NO_GPU = (
    "peers: the PyTorch of python3 sees no GPU; 'pip install torch' brings one with CUDA, and an NVIDIA GPU is needed"
)
NO_BACKWARD = "no chapter in the library has a backward in {}; skipped"

# TARGETS: batch * seqlen = 16384, heads * head_dim = 2048.
TOKENS, WIDTH = 16384, 2048
HEAD_DIMS = {"forward": (64, 128, 256), "backward": (64, 128)}
SEQLENS = {"forward": (512, 1024, 2048, 4096, 8192, 16384), "backward": (1024, 2048, 4096, 8192, 16384)}
COLD_BYTES = 240e6
ROUNDS = 14
SLOW, SLOW_ROUNDS = 8, 4  # so many times the fastest's time; rounds that such a one takes part in
WARM_UP_SECONDS, WARM_UP_LAUNCHES = 0.03, 3
SAMPLED_ROWS = 48
QUEUE_CYCLES_PER_LAUNCH = 300_000  # some 150 us: more than Python takes to queue one

# Names in files and tables; the first is the one that the chapters are held against.
PEERS = {"flash": "FlashAttention-2", "cudnn": "cuDNN", "efficient": "memory-efficient", "math": "math"}
BASE = "flash"


def refuse(sentence):
    print(f"peers: {sentence}", file=sys.stderr)
    sys.exit(2)


def options_of(words, with_value, flags=()):
    """(positional words, {option: value})."""
    rest, values = [], {}
    words = list(words)
    while words:
        word = words.pop(0)
        if word in flags:
            values[word] = True
        elif word in with_value:
            if not words:
                refuse(f"{word} needs a value; allowed: as the script's first lines say")
            values[word] = words.pop(0)
        elif word.startswith("-"):
            refuse(f"unknown argument '{word}'; allowed: {', '.join((*with_value, *flags))}")
        else:
            rest.append(word)
    return rest, values


# --- Measuring --------------------------------------------------------------------------------------------------------


class Cell:
    """One problem: its size, and the rounded inputs in several copies."""

    def __init__(self, torch, accuracy, element, head_dim, causal, seqlen, tokens, width, device, cold_bytes):
        self.element, self.head_dim, self.causal, self.seqlen = element, head_dim, causal, seqlen
        self.batch, self.heads = max(1, tokens // seqlen), max(1, width // head_dim)
        self.right = 0 if causal else book.UNLIMITED
        shape = (self.batch, seqlen, self.heads, head_dim)
        self.shape = shape
        one = 3 * math.prod(shape) * (4 if element == "fp32" else 2)
        dtype = accuracy.TYPES[element]
        self.seed = seqlen + head_dim + causal
        torch.manual_seed(self.seed)
        self.copies = []
        for _ in range(int(cold_bytes // one) + 1):
            self.copies.append({name: torch.randn(shape, device=device, dtype=dtype) for name in ("q", "k", "v")})
        self.next = 0

    def next_copy(self):
        self.next = (self.next + 1) % len(self.copies)
        return self.next

    def flops(self, direction):
        pairs = self.seqlen * self.seqlen
        forward = 4 * self.batch * self.heads * self.head_dim * (pairs / 2 if self.causal else pairs)
        return forward * (2.5 if direction == "backward" else 1)

    def describe(self, direction):
        mask = "causal" if self.causal else "no mask"
        return (
            f"{direction}, batch {self.batch}, heads {self.heads}, seqlen {self.seqlen}, head_dim {self.head_dim}, "
            f"{mask}, {self.element}"
        )


class Contender:
    """Something to be checked and timed: launch(copy) queues it, results() is what the last launch gave.

    A backward's `o` is the O of the first copy that it is given, [batch, seqlen, heads, head_dim].
    """

    def __init__(self, name, chapter, launch, results, o=None):
        self.name, self.chapter, self.launch, self.results, self.o = name, chapter, launch, results, o
        self.error, self.share, self.samples = {}, None, []

    def label(self):
        return f"{self.chapter[:2]} {self.name}" if self.chapter else PEERS[self.name]


def attend(torch, backend, cell, tensors):
    """One of PyTorch's backends, and no other, on [batch, seqlen, heads, head_dim]. O is [batch, heads, ...]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }[backend]
    q, k, v = (tensors[name].transpose(1, 2) for name in ("q", "k", "v"))
    with sdpa_kernel(chosen):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cell.causal)


def peer_forward(torch, backend, cell):
    kept = {}

    def launch(copy):
        kept.clear()  # first, so that the pool hands out the same memory again
        with torch.no_grad():
            kept["o"] = attend(torch, backend, cell, cell.copies[copy])

    return Contender(backend, None, launch, lambda: {"o": kept["o"].transpose(1, 2)})


def peer_backward(torch, backend, cell, dout):
    graphs = []
    for tensors in cell.copies:
        leaves = {name: t.detach().requires_grad_() for name, t in tensors.items()}
        graphs.append((attend(torch, backend, cell, leaves), list(leaves.values())))
    kept = {}

    def launch(copy):
        kept.clear()
        o, leaves = graphs[copy]
        kept.update(zip(("dq", "dk", "dv"), torch.autograd.grad(o, leaves, dout.transpose(1, 2), retain_graph=True)))

    return Contender(backend, None, launch, lambda: dict(kept), graphs[0][0].detach().transpose(1, 2))


def book_contender(torch, library, kernel, cell, device, results, given=None):
    """A chapter's kernel. `given` has, per copy, what a backward takes beside the inputs."""
    calls = []
    for i, tensors in enumerate(cell.copies):
        arrays = {**tensors, **(given[i] if given else {}), **results}
        problem = book.tensor_problem(cell.element, arrays, right=cell.right)
        size = library.workspace_bytes(kernel, problem)
        if i == 0:
            workspace = torch.empty((size,), dtype=torch.uint8, device=device)
        calls.append(
            library.bind(kernel, problem, book.addresses(arrays), workspace.data_ptr() if size else None, size)
        )
    calls[0].kept = (workspace, given)  # as long as the calls, which know only where they are
    for call in calls:
        call.prepare()
    o = given[0]["o"] if given else None
    return Contender(kernel.name, kernel.chapter, lambda copy: calls[copy].run(), lambda: results, o)


def forward_contenders(torch, library, cell, device, skipped):
    made = []
    for backend in PEERS:
        made.append(peer_forward(torch, backend, cell))
    for kernel in library.kernels:
        if kernel.direction != "forward" or cell.element not in kernel.elements or kernel.on_host:
            continue
        results = {
            "o": torch.full_like(cell.copies[0]["q"], float("nan")),
            "lse": torch.full((cell.batch, cell.heads, cell.seqlen), float("nan"), device=device),
        }
        try:
            made.append(book_contender(torch, library, kernel, cell, device, results))
        except book.Refused as refused:
            skipped.append({"name": kernel.name, "chapter": kernel.chapter, "sentence": str(refused)})
    return made


def launch_first(torch, library, kernels, cell, device, results, copy):
    """Launches the first of the kernels that takes the problem on this GPU."""
    refusals = []
    for kernel in kernels:
        try:
            book_contender(torch, library, kernel, cell, device, results).launch(copy)
            return
        except book.Refused as refused:
            refusals.append(str(refused))
    raise book.Failed(f"no forward takes {cell.describe('forward')}: {'; '.join(refusals)}")


def backward_contenders(torch, library, cell, device, skipped):
    """The kernels that have one in this element type. O and LSE come from the library's last forward."""
    backward = [k for k in library.kernels if k.direction == "backward" and cell.element in k.elements]
    forward = [k for k in library.kernels if k.direction == "forward" and cell.element in k.elements and not k.on_host]
    dout = torch.randn(cell.shape, device=device, dtype=cell.copies[0]["q"].dtype)
    given = []
    for copy in range(len(cell.copies)):
        results = {
            "o": torch.empty_like(dout),
            "lse": torch.empty((cell.batch, cell.heads, cell.seqlen), device=device),
        }
        launch_first(torch, library, forward[::-1], cell, device, results, copy)
        given.append({**results, "dout": dout})
    library.synchronize()
    made = []
    for backend in PEERS:
        try:
            made.append(peer_backward(torch, backend, cell, dout))
        except RuntimeError as error:
            skipped.append({"name": backend, "chapter": None, "sentence": one_line(error)})
    for kernel in backward:
        results = {
            name: torch.full(cell.shape, float("nan"), device=device, dtype=dout.dtype) for name in ("dq", "dk", "dv")
        }
        try:
            made.append(book_contender(torch, library, kernel, cell, device, results, given))
        except book.Refused as refused:
            skipped.append({"name": kernel.name, "chapter": kernel.chapter, "sentence": str(refused)})
    return made, dout


def one_line(error):
    text = str(error).strip().split("\n")[0]
    return text[:200] if text else type(error).__name__


def forward_judge(torch, accuracy, cell, device):
    """Rows drawn from the whole sequence, the first and the last among them, of every head of every batch."""
    count = min(SAMPLED_ROWS, cell.seqlen)
    rows = torch.randperm(cell.seqlen)[:count]
    rows[0], rows[-1] = 0, cell.seqlen - 1
    rows = rows.sort().values.to(device)
    tensors = cell.copies[0]
    q, k, v = (tensors[name].transpose(1, 2) for name in ("q", "k", "v"))
    seen = accuracy.visible(cell.seqlen, cell.seqlen, book.UNLIMITED, cell.right, rows=rows, device=device)
    scale = float(torch.tensor(cell.head_dim**-0.5, dtype=torch.float32))
    yardstick = accuracy.Forward(q[:, :, rows], k, v, seen, scale, cell.element)

    def judge(contender):
        results = contender.results()
        lse = results["lse"][:, :, rows] if "lse" in results else None
        error = yardstick.error(results["o"].transpose(1, 2)[:, :, rows], lse)
        everywhere = all(bool(torch.isfinite(x).all()) for x in results.values())
        return error, yardstick.ratio(error) if everywhere else math.inf

    return judge


def backward_judge(torch, accuracy, cell, device, dout):
    """All rows of two heads: the first of the first batch and the last of the last."""
    chosen = [(0, 0), (cell.batch - 1, cell.heads - 1)]
    seen = accuracy.visible(cell.seqlen, cell.seqlen, book.UNLIMITED, cell.right, device=device)
    scale = float(torch.tensor(cell.head_dim**-0.5, dtype=torch.float32))

    def head(x, b, h):
        return x[b, :, h][None, :, :]

    yardsticks = [
        accuracy.Backward(
            *(head(cell.copies[0][name], b, h) for name in ("q", "k", "v")), head(dout, b, h), seen, scale, cell.element
        )
        for b, h in chosen
    ]

    def judge(contender):
        results = contender.results()
        worst, share = {}, 0.0
        for (b, h), of_any in zip(chosen, yardsticks):
            yardstick = of_any.given(head(contender.o, b, h))
            error = yardstick.error({name: head(results[name], b, h) for name in ("dq", "dk", "dv")})
            worst = {name: max(error[name], worst.get(name, 0.0)) for name in error}
            share = max(share, yardstick.ratio(error))
        everywhere = all(bool(torch.isfinite(results[name]).all()) for name in ("dq", "dk", "dv"))
        return worst, share if everywhere else math.inf

    return judge


class Timer:
    """Times queued launches: by CUDA events, or in a rehearsal by the CPU's clock."""

    def __init__(self, torch, on_gpu):
        self.torch, self.on_gpu = torch, on_gpu

    def synchronize(self):
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def queue(self, launches):
        """Seconds of each launch. The queue starts behind a wait, so that the GPU never waits for Python."""
        if not self.on_gpu:
            times = []
            for launch in launches:
                start = time.perf_counter()
                launch()
                times.append(time.perf_counter() - start)
            return times
        cuda = self.torch.cuda
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in launches]
        cuda._sleep(QUEUE_CYCLES_PER_LAUNCH * len(launches))
        for launch, (start, end) in zip(launches, events):
            start.record()
            launch()
            end.record()
        cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]


def time_in_rounds(torch, timer, cell, contenders, rounds, skipped):
    """Returns those that were timed: all but the peers for which there was not enough memory.

    Each gets two samples a round, which stand next to each other, however the round's order was drawn. Who is far
    slower than the fastest takes part in the first rounds alone: half of the time was spent on waiting for it.
    """

    def launch(contender):
        return lambda: contender.launch(cell.next_copy())

    least = {}
    for contender in list(contenders):
        spent, count = 0.0, 0
        try:
            while timer.on_gpu and (count < WARM_UP_LAUNCHES or spent < WARM_UP_SECONDS) and count < 1000:
                times = timer.queue([launch(contender)] * 4)
                spent, count = spent + sum(times), count + len(times)
                least[contender] = min(*times, least.get(contender, math.inf))
        except torch.OutOfMemoryError as error:
            contenders = [c for c in contenders if c is not contender]
            skipped.append({"name": contender.name, "chapter": contender.chapter, "sentence": one_line(error)})
            torch.cuda.empty_cache()
    chance = random.Random(cell.seed)
    fastest = min(least.values(), default=math.inf)
    for i in range(rounds):
        # Of all: who takes part depends on times, and the order must not.
        drawn = chance.sample(contenders, len(contenders))
        drawn = [c for c in drawn if i < SLOW_ROUNDS or least.get(c, 0) <= SLOW * fastest]
        order = drawn + drawn[::-1]
        for contender, seconds in zip(order, timer.queue([launch(c) for c in order])):
            contender.samples.append(seconds)
    return contenders


def percentile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)


def ratio(before, now):
    """{median, low, high} of before's time over now's, round by round (two samples each); 10th to 90th percentile."""
    rounds = [(before[i] + before[i + 1]) / (now[i] + now[i + 1]) for i in range(0, min(len(before), len(now)) - 1, 2)]
    return {"median": statistics.median(rounds), "low": percentile(rounds, 0.1), "high": percentile(rounds, 0.9)}


def ratio_text(r):
    return f"{r['median']:.2f}x ({r['low']:.2f} … {r['high']:.2f})"


def measure_cell(torch, accuracy, library, cell, direction, device, timer, rounds):
    """The cell's part of the file. Raises book.Failed if a chapter's kernel is wrong."""
    skipped = []
    if direction == "forward":
        contenders = forward_contenders(torch, library, cell, device, skipped)
        judge = forward_judge(torch, accuracy, cell, device)
    else:
        contenders, dout = backward_contenders(torch, library, cell, device, skipped)
        judge = backward_judge(torch, accuracy, cell, device, dout)
    timer.synchronize()
    right = []
    for contender in contenders:
        try:
            contender.launch(0)
            library.synchronize()
            timer.synchronize()
            contender.error, contender.share = judge(contender)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if contender.chapter or isinstance(error, book.Failed):
                raise book.Failed(f"{contender.label()} failed: {one_line(error)}") from error
            skipped.append({"name": contender.name, "chapter": None, "sentence": one_line(error)})
            continue
        if contender.share <= 1:
            right.append(contender)
        elif contender.chapter:
            raise book.Failed(f"{contender.label()} is wrong: {contender.error}; {cell.describe(direction)}")
        else:
            skipped.append({"name": contender.name, "chapter": None, "sentence": f"not right: {contender.error}"})
    if direction == "forward" and torch.cuda.is_available():
        torch.cuda.empty_cache()  # what the checks took
    right = time_in_rounds(torch, timer, cell, right, rounds, skipped)
    rows = [
        {
            "name": c.name,
            "chapter": c.chapter,
            "share_of_allowed": c.share,
            "error": c.error,
            "seconds": statistics.median(c.samples),
            "samples": [float(f"{s:.7g}") for s in c.samples],
        }
        for c in right
    ]
    return {
        "pass": direction,
        "element": cell.element,
        "head_dim": cell.head_dim,
        "causal": cell.causal,
        "seqlen": cell.seqlen,
        "batch": cell.batch,
        "heads": cell.heads,
        "copies": len(cell.copies),
        "flops": cell.flops(direction),
        "rows": rows,
        "skipped": skipped,
    }


def best_peer(cell):
    peers = [row for row in cell["rows"] if row["chapter"] is None]
    return min(peers, key=lambda row: row["seconds"]) if peers else None


def row_of(cell, name, chapter=None):
    found = [row for row in cell["rows"] if row["name"] == name and row["chapter"] == chapter]
    return found[0] if found else None


def show_cell(cell, title):
    print(title)
    base, best = row_of(cell, BASE), best_peer(cell)
    for row in cell["rows"]:
        label = f"{row['chapter'][:2]} {row['name']}" if row["chapter"] else PEERS[row["name"]]
        line = f"  {label:<18} {1e3 * row['seconds']:9.3f} ms {cell['flops'] / row['seconds'] / 1e12:7.1f} TFLOP/s"
        if row["chapter"] and base:
            line += f"   {ratio_text(ratio(base['samples'], row['samples']))} {PEERS[BASE]}"
        if row["chapter"] and best:
            line += f"   {ratio_text(ratio(best['samples'], row['samples']))} best peer, {PEERS[best['name']]}"
        print(line)
    for entry in cell["skipped"]:
        print(f"  {entry['name']}: skipped, {entry['sentence']}")
    print(flush=True)


def geometric_means(cells):
    """{(pass, chapter, kernel): {"base": (mean, cells), "best": ...}} of the median ratios."""
    logs = {}
    for cell in cells:
        for row in cell["rows"]:
            if not row["chapter"]:
                continue
            of_kernel = logs.setdefault((cell["pass"], row["chapter"], row["name"]), {"base": [], "best": []})
            for key, peer in (("base", row_of(cell, BASE)), ("best", best_peer(cell))):
                if peer:
                    of_kernel[key].append(math.log(ratio(peer["samples"], row["samples"])["median"]))
    return {
        kernel: {key: (math.exp(sum(x) / len(x)), len(x)) for key, x in of.items() if x} for kernel, of in logs.items()
    }


def gpu_seen(when):
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
    try:
        lines = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [f"{when}: {query}: {line}" for line in lines]


def read_hashes(path):
    """{"common": {path in it: hash}, "08_async_copy": {file: hash}}: what sha256sum printed."""
    hashes = {}
    try:
        text = pathlib.Path(path).read_text()
    except OSError as error:
        refuse(f"'{path}' cannot be read ({error.strerror}); allowed: what sha256sum printed of the kernel files")
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        folder, _, file = name.removeprefix("chapters/").rpartition("/")
        if name.startswith("common/"):
            folder, file = "common", name.removeprefix("common/")
        hashes.setdefault(folder, {})[file] = digest
    return hashes


def write_atomically(path, text):
    path = pathlib.Path(path)
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


def slug(name):
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name.lower()).split()) or "gpu"


def measure(words):
    rest, options = options_of(words, ("--library", "--hashes", "--commit", "--out", "--rehearse", "--dtype"))
    rehearsal = options.get("--rehearse")
    element = options.get("--dtype", "bf16")
    if rest or "--library" not in options or element not in book.ELEMENTS:
        refuse(
            "measure takes --library FILE, --dtype fp32, fp16 or bf16, and --rehearse FILE or "
            "--hashes FILE --commit COMMIT --out FOLDER"
        )
    if not rehearsal and not all(name in options for name in ("--hashes", "--commit", "--out")):
        refuse("--hashes, --commit and --out are needed; allowed: as the script's first lines say")
    warnings.filterwarnings("ignore", message=".*NumPy.*")
    try:
        import torch
        import accuracy
    except ImportError:
        print(NO_TORCH, file=sys.stderr)
        return 2
    if not rehearsal and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    try:
        library = book.Library(options["--library"])
        machine = library.machine()
    except (OSError, book.Refused, book.Failed) as error:
        print(f"peers: {options['--library']} does not work: {error}", file=sys.stderr)
        return 1
    if machine["emulated"] != bool(rehearsal):
        refuse("the emulator says nothing about time: it is for --rehearse alone, and --rehearse for it alone")

    device = "cpu" if rehearsal else "cuda"
    cudnn = None if rehearsal else torch.backends.cudnn.version()
    result = {
        "format": FORMAT,
        "machine": {key: machine[key] for key in ("name", "multiprocessors", "driver", "cuda", "clock_khz")},
        "pytorch": {"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn},
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": options.get("--commit", "rehearsal"),
        "seen": gpu_seen("before"),
    }
    hashes = {} if rehearsal else read_hashes(options["--hashes"])
    print(
        f"{machine['name']}, driver {machine['driver'] or '-'}, CUDA {machine['cuda'] or '-'}; PyTorch "
        f"{torch.__version__}, cuDNN {cudnn or '-'}. Ratios are a peer's time over the kernel's: above 1 the kernel is "
        "faster.\n"
    )

    passes = ["forward"]
    if any(k.direction == "backward" and element in k.elements for k in library.kernels):
        passes.append("backward")
    else:
        print(f"backward: {NO_BACKWARD.format(element)}\n")
    tokens, width = (TOKENS, WIDTH) if not rehearsal else (96, 128)
    timer = Timer(torch, not rehearsal)
    problems = [
        (direction, head_dim, causal, seqlen)
        for direction in passes
        for head_dim in HEAD_DIMS[direction]
        for causal in (False, True)
        for seqlen in (SEQLENS[direction] if not rehearsal else (48, 96))
    ]
    cold_bytes, rounds = (COLD_BYTES, ROUNDS) if not rehearsal else (0, 2)
    cells = []
    try:
        for direction, head_dim, causal, seqlen in problems:
            cell = Cell(torch, accuracy, element, head_dim, causal, seqlen, tokens, width, device, cold_bytes)
            measured = measure_cell(torch, accuracy, library, cell, direction, device, timer, rounds)
            cells.append(measured)
            show_cell(measured, f"{cell.describe(direction)} ({len(cells)} of {len(problems)})")
            result["seen"] += gpu_seen(f"after {cell.describe(direction)}")
            del cell
            if device == "cuda":
                torch.cuda.empty_cache()
    except book.Failed as error:
        print(f"peers: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if len(cells) < len(problems):
            print(f"peers: {len(cells)} of {len(problems)} cells were measured; nothing was written", file=sys.stderr)
    for (direction, chapter, name), means in geometric_means(cells).items():
        words = [
            f"{mean:.3f}x {PEERS[BASE] if key == 'base' else 'best peer'} ({count} cells)"
            for key, (mean, count) in means.items()
        ]
        print(f"geometric mean, {direction}, {chapter[:2]} {name}: {', '.join(words)}")
    measured_chapters = {row["chapter"] for cell in cells for row in cell["rows"] if row["chapter"]}
    result["common"] = hashes.get("common", {})
    result["hashes"] = {chapter: hashes.get(chapter, {}) for chapter in sorted(measured_chapters)}
    result["cells"] = cells
    path = pathlib.Path(rehearsal or pathlib.Path(options["--out"]) / f"{slug(machine['name'])}-peers.json")
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"\nWrote {path}.")
    return 0


# --- Tables -----------------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- peers:", "<!-- /peers -->"
NOTHING_YET = "There is no measurement yet: the table appears after `./learn bench --peers` on a machine with a GPU.\n"
STALE = (
    "\nStale: the chapter's sources, or the headers in common that kernels are compiled from, have changed since they "
    "were measured.\n"
)


def is_stale(result, chapter, present):
    """As for the other results: headers that are new make nothing stale."""
    if result["hashes"][chapter] != present.get(chapter, {}):
        return True
    return any(present.get("common", {}).get(path) != digest for path, digest in result["common"].items())


def markdown_table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---|---|" + "---:|" * (len(header) - 2)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def pass_markdown(cells, chapter, stale):
    """The cells of one pass in which the chapter has kernels.

    Ratios are shown of the kernel whose geometric mean over these cells is best: against the base, or where that took
    part in none of them, against the best peer.
    """
    cells = [c for c in cells if any(row["chapter"] == chapter for row in c["rows"])]
    if not cells:
        return ""
    kernels = list(dict.fromkeys(r["name"] for c in cells for r in c["rows"] if r["chapter"] == chapter))
    peers = [p for p in PEERS if any(row_of(c, p) for c in cells)]
    means = {kernel: of for (_, of_chapter, kernel), of in geometric_means(cells).items() if of_chapter == chapter}
    shown = max(kernels, key=lambda kernel: means[kernel].get("base") or means[kernel].get("best") or (0, 0))
    mark = " (stale)" if stale else ""
    header = (
        ["head_dim", "mask", "N"]
        + [PEERS[p] for p in peers]
        + [f"`{k}`{mark}" for k in kernels]
        + [f"`{shown}` × {PEERS[BASE]}", f"`{shown}` × best peer"]
    )

    def teraflops(cell, row):
        return f"{cell['flops'] / row['seconds'] / 1e12:.0f}" if row else "-"

    rows = []
    for cell in cells:
        row, base, best = row_of(cell, shown, chapter), row_of(cell, BASE), best_peer(cell)
        rows.append(
            [str(cell["head_dim"]), "causal" if cell["causal"] else "none", str(cell["seqlen"])]
            + [teraflops(cell, row_of(cell, p)) for p in peers]
            + [teraflops(cell, row_of(cell, k, chapter)) for k in kernels]
            + [ratio_text(ratio(peer["samples"], row["samples"])) if peer and row else "-" for peer in (base, best)]
        )
    lines = []
    for kernel in kernels:
        of = means[kernel]
        words = [
            f"{of[key][0]:.2f}x {what}" for key, what in (("base", PEERS[BASE]), ("best", "the best peer")) if key in of
        ]
        lines.append(f"- `{kernel}`: {', '.join(words)}")
    return (
        f"\n{cells[0]['pass'].capitalize()}, {cells[0]['element']}, TFLOP/s:\n\n"
        + markdown_table(header, rows)
        + f"\nGeometric means over {len(cells)} cells:\n\n"
        + "\n".join(lines)
        + "\n"
    )


def cudnn_version(number):
    """91900 is 9.19.0."""
    if not number:
        return "-"
    major = 10000 if number >= 90000 else 1000  # 8907 is 8.9.7
    return f"{number // major}.{number % major // 100}.{number % 100}"


def chapter_markdown(results, chapter, present):
    out = []
    for result in results:
        if chapter not in result["hashes"]:
            continue
        machine, torch = result["machine"], result["pytorch"]
        stale = is_stale(result, chapter, present)
        commit, dash, dirty = result["commit"].partition("-")
        text = (
            f"{machine['name']}, driver {machine['driver']}, CUDA {machine['cuda']}; PyTorch {torch['version']}, cuDNN "
            f"{cudnn_version(torch['cudnn'])}; measured on {result['date']}, commit `{commit[:12]}{dash}{dirty}`. "
            f"batch × N = {TOKENS}, heads × head_dim = {WIDTH}.\n"
        )
        for direction in ("forward", "backward"):
            text += pass_markdown([c for c in result["cells"] if c["pass"] == direction], chapter, stale)
        text += (
            "\n×: the peer's time over the kernel's, round by round; median (10th … 90th percentile). Above 1 the "
            "kernel is faster.\n"
        )
        out.append(text + (STALE if stale else ""))
    return "\n".join(out) or NOTHING_YET


def region(text, number, path):
    """Where the table of chapter `number` stands in the text; None if it has no marker."""
    lines = text.splitlines(keepends=True)
    begins = [i for i, line in enumerate(lines) if line.strip().startswith(BEGIN)]
    ends = [i for i, line in enumerate(lines) if line.strip() == END]
    if not begins and not ends:
        return None
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0] or lines[begins[0]].strip() != f"{BEGIN}{number} -->":
        refuse(
            f"'{path}' has {len(begins)} lines '{BEGIN}NN -->' and {len(ends)} '{END}'; allowed: '{BEGIN}{number} -->' "
            "and, below it, the other, once each"
        )
    return "".join(lines[: begins[0] + 1]), "".join(lines[ends[0] :])


def tables(words):
    rest, options = options_of(words, ("--hashes",), ("--check",))
    if len(rest) != 1 or "--hashes" not in options:
        refuse("tables takes the book's folder, --hashes FILE and --check")
    root = pathlib.Path(rest[0])
    present = read_hashes(options["--hashes"])
    results = []
    for path in sorted((root / "docs" / "results").glob("*-peers.json")):
        try:
            result = json.loads(path.read_text())
            if result["format"] != FORMAT:
                raise ValueError("its format is another than this script reads")
            results.append(result)
            for chapter in result["hashes"]:  # whatever a table needs is there
                chapter_markdown([result], chapter, present)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            refuse(f"'{path}' holds no results of ./learn bench --peers ({type(error).__name__}: {one_line(error)})")
    changed = []
    for path in sorted((root / "chapters").glob("[0-9][0-9]_*/README.md")):
        text = path.read_text()
        around = region(text, path.parent.name[:2], path)
        if around:
            wanted = around[0] + "\n" + chapter_markdown(results, path.parent.name, present) + "\n" + around[1]
            if wanted != text:
                changed.append((path, wanted))
    names = ", ".join(str(path.relative_to(root)) for path, _ in changed)
    if "--check" in options and changed:
        print(
            f"peers: the tables in {names} are not those of docs/results; ./learn tables writes them", file=sys.stderr
        )
        return 1
    for path, text in changed:
        write_atomically(path, text)
    if changed:
        print(f"Wrote the peers' tables in {names}.")
    return 0


def main(words):
    commands = {"measure": measure, "tables": tables}
    if not words or words[0] not in commands:
        refuse(f"a command is needed; allowed: {', '.join(commands)}")
    return commands[words[0]](words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
