"""The chapters' kernels against PyTorch alone: ./learn compare [NN] [--emulator]

Every kernel, in every element type that it takes, over a grid of shapes; reference and rule are in accuracy.py. With
the emulator's library it runs on CPU tensors. Ends with 0 if all results are right, with 1 if one is wrong or the
device failed, and with 2 for a wrong argument or where PyTorch is missing.
"""

import argparse
import sys
import warnings

import book

NO_TORCH = (
    "compare: python3 has no PyTorch 2.5 or later, with which the kernels are compared; "
    "'pip install torch' brings it"
)
INF = book.UNLIMITED

# batch, heads_q, heads_kv, seqlen_q, seqlen_kv, left, right, layout, scale, what it is about
SHAPES = [
    (1, 1, 1, 64, 64, INF, INF, "dense", None, "one tile"),
    (2, 2, 2, 67, 67, INF, INF, "dense", None, "ragged"),
    (1, 2, 1, 1, 130, INF, 0, "dense", None, "one query, heads 2/1"),
    (1, 4, 2, 97, 97, INF, 0, "dense", None, "causal, heads 4/2"),
    (1, 3, 1, 33, 150, INF, 0, "fused", None, "causal, more keys than queries, heads 3/1"),
    (1, 2, 2, 150, 33, INF, 0, "dense", None, "causal, rows that see nothing"),
    (1, 2, 2, 130, 130, 17, 9, "dense", None, "window"),
    (1, 2, 1, 70, 140, 40, 0, "padded", None, "causal window, heads 2/1"),
    (2, 2, 1, 75, 50, 3, INF, "heads_first", None, "left window, rows that see nothing"),
    (1, 1, 1, 40, 1, INF, INF, "dense", None, "one key"),
    (1, 2, 2, 66, 129, INF, INF, "fused", 0.5, "scale 0.5"),
    (1, 1, 1, 65, 66, INF, 0, "padded", -0.1, "scale -0.1"),
]
# More than the emulator should be given.
GPU_SHAPES = [
    (2, 8, 2, 1000, 1000, INF, 0, "dense", None, "causal, heads 8/2"),
    (1, 4, 4, 513, 2049, INF, INF, "fused", None, "many keys"),
    (1, 4, 2, 1025, 700, 300, 0, "padded", None, "causal window"),
]


def parse(words):
    parser = argparse.ArgumentParser(prog="compare", allow_abbrev=False, add_help=False)
    parser.add_argument("--library", required=True)
    parser.add_argument("--chapter")
    try:
        parser.error = refuse
        return parser.parse_args(words)
    except argparse.ArgumentError as error:
        refuse(str(error))


def refuse(sentence):
    print(f"compare: {sentence}; allowed: --library FILE [--chapter NN_name]", file=sys.stderr)
    sys.exit(2)


def tensor(torch, generator, shape, layout, dtype, device, heads_of=1):
    """[batch, seqlen, heads, head_dim], random, in one of several layouts; gaps hold NaN."""
    batch, seqlen, heads, d = shape
    if layout == "heads_first":
        whole = torch.full((batch, heads, seqlen, d), float("nan"), dtype=dtype, device=device)
        view = whole.permute(0, 2, 1, 3)
    elif layout == "fused":  # between other tensors' heads, as a fused projection leaves them
        whole = torch.full((batch, seqlen, heads + 2 * heads_of, d), float("nan"), dtype=dtype, device=device)
        view = whole[:, :, heads_of : heads_of + heads]
    elif layout == "padded":  # rows further apart than they are long
        whole = torch.full((batch, seqlen, heads, d + 16), float("nan"), dtype=dtype, device=device)
        view = whole[..., :d]
    else:
        view = torch.full(shape, float("nan"), dtype=dtype, device=device)
    if generator is not None:
        view.copy_(torch.randn(shape, generator=generator, dtype=torch.float64) + 0.3)
    return view


class Case:
    """Inputs of one shape, head_dim and element type, and what results are measured against."""

    def __init__(self, torch, accuracy, shape, head_dim, element, seed, device):
        batch, heads_q, heads_kv, seqlen_q, seqlen_kv, self.left, self.right, self.layout, scale, self.about = shape
        self.torch, self.accuracy, self.element, self.device = torch, accuracy, element, device
        self.dtype = accuracy.TYPES[element]
        self.sizes = {"q": (batch, seqlen_q, heads_q, head_dim), "k": (batch, seqlen_kv, heads_kv, head_dim)}
        self.sizes.update(
            v=self.sizes["k"],
            o=self.sizes["q"],
            dout=self.sizes["q"],
            dq=self.sizes["q"],
            dk=self.sizes["k"],
            dv=self.sizes["k"],
        )
        self.lse_shape = (batch, heads_q, seqlen_q)
        self.given_scale = scale
        # As a kernel gets it: a float.
        self.scale = float(torch.tensor(head_dim**-0.5 if scale is None else scale, dtype=torch.float32))
        generator = torch.Generator().manual_seed(seed)
        self.inputs = {name: self.new(name, generator) for name in ("q", "k", "v", "dout")}
        self.dlse = torch.randn(self.lse_shape, generator=generator, dtype=torch.float32).to(device)
        self.seen = accuracy.visible(seqlen_q, seqlen_kv, self.left, self.right, device=device)
        self.yardsticks = {}

    def new(self, name, generator=None):
        return tensor(self.torch, generator, self.sizes[name], self.layout, self.dtype, self.device)

    def yardstick(self, direction):
        if direction not in self.yardsticks:
            q, k, v, dout = (x.transpose(1, 2) for x in self.inputs.values())
            if direction == "forward":
                made = self.accuracy.Forward(q, k, v, self.seen, self.scale, self.element)
            else:
                made = self.accuracy.Backward(q, k, v, dout, self.seen, self.scale, self.element, self.dlse)
            self.yardsticks[direction] = made
        return self.yardsticks[direction]

    def arrays(self, direction):
        """Inputs, and outputs full of NaN."""
        nan = self.torch.full(self.lse_shape, float("nan"), device=self.device)
        arrays = {name: self.inputs[name] for name in ("q", "k", "v")}
        arrays["o"] = self.new("o")
        if direction == "forward":
            return {**arrays, "lse": nan}
        yardstick = self.yardstick("backward")
        arrays["o"].copy_(yardstick.o.transpose(1, 2))
        return {
            **arrays,
            "lse": yardstick.lse.contiguous(),
            "dout": self.inputs["dout"],
            "dlse": self.dlse,
            **{name: self.new(name) for name in ("dq", "dk", "dv")},
        }

    def judge(self, direction, arrays):
        """(share of what is allowed, errors)."""
        yardstick = self.yardstick(direction)
        if direction == "forward":
            error = yardstick.error(arrays["o"].transpose(1, 2), arrays["lse"])
        else:
            error = yardstick.error({name: arrays[name].transpose(1, 2) for name in ("dq", "dk", "dv")})
        return yardstick.ratio(error), error

    def describe(self):
        return f"{self.about}, seqlen {self.lse_shape[2]}/{self.sizes['k'][1]}, head_dim {self.sizes['q'][3]}"


def run(torch, library, kernel, case):
    """Runs a kernel on a case. Returns what Case.judge says, or None if it does not take the problem."""
    arrays = case.arrays(kernel.direction)
    device = case.device
    if kernel.on_host and device != "cpu":
        moved = {name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for name, t in arrays.items()}
        arrays, device = moved, "cpu"
    problem = book.tensor_problem(case.element, arrays, case.left, case.right, case.given_scale)
    try:
        size = library.workspace_bytes(kernel, problem)
    except book.Refused:
        return None
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
    if device != "cpu":
        torch.cuda.synchronize()
    call = library.bind(kernel, problem, book.addresses(arrays), workspace.data_ptr() if size else None, size)
    call.prepare()
    call.run()
    library.synchronize()
    if device != case.device:
        arrays = {name: t.to(case.device) for name, t in arrays.items()}
    return case.judge(kernel.direction, arrays)


def compare(torch, accuracy, library, kernels):
    emulated = library.machine()["emulated"]
    device = "cpu" if emulated else "cuda"
    shapes = SHAPES if emulated else SHAPES + GPU_SHAPES
    print(
        f"PyTorch {torch.__version__} in float64 against the chapters on {library.machine()['name']}. The worst error "
        "is that which takes\nthe largest share of what the accuracy rule allows it.\n"
    )
    print(
        f"{'chapter':<23} {'kernel':<17} {'pass':<8} {'type':<4} {'shapes':>6}  {'worst error':<23} "
        f"{'share':>5}  verdict"
    )
    cases = {}
    wrong = 0
    for kernel in kernels:
        for element in kernel.elements:
            tried, worst, verdict = 0, (-1.0, "-", None), "right"
            for i, shape in enumerate(shapes):
                for head_dim in (32, 64, 128, 256):
                    if head_dim != (32, 64, 128, 256)[i % 4] and head_dim not in (64, 128):
                        continue  # 32 and 256 with some of the shapes
                    key = (i, head_dim, element)
                    if key not in cases:
                        cases[key] = Case(torch, accuracy, shape, head_dim, element, 1000 + 10 * i + head_dim, device)
                    try:
                        judged = run(torch, library, kernel, cases[key])
                    except book.Failed as error:
                        judged, verdict = (float("inf"), {}), f"failed: {error}"
                    if judged is None:
                        continue
                    tried += 1
                    share, error = judged
                    if share > worst[0]:
                        allowed = cases[key].yardstick(kernel.direction).allowed
                        name = (
                            max(error, key=lambda n: error[n] / allowed[n] if allowed[n] else error[n])
                            if error
                            else "-"
                        )
                        worst = (share, f"{name} {error[name]:.2e}" if error else "-", cases[key])
            if tried == 0:
                verdict = "took none of the shapes"
            elif verdict == "right" and worst[0] > 1:
                verdict = f"WRONG: {worst[2].describe()}"
            wrong += verdict != "right"
            print(
                f"{kernel.chapter:<23} {kernel.name:<17} {kernel.direction:<8} {element:<4} {tried:>6}  {worst[1]:<23} "
                f"{worst[0]:>5.2f}  {verdict}",
                flush=True,
            )
    print(f"\n{'All right.' if wrong == 0 else f'{wrong} not right.'}")
    return 1 if wrong else 0


def main(words):
    options = parse(words)
    warnings.filterwarnings("ignore", message=".*NumPy.*")  # PyTorch would like it; nothing here needs it
    try:
        import torch
        import accuracy
    except ImportError:
        print(NO_TORCH, file=sys.stderr)
        return 2
    try:
        library = book.Library(options.library)
        library.machine()
    except (OSError, book.Refused, book.Failed) as error:
        print(f"compare: {options.library} does not work: {error}", file=sys.stderr)
        return 1
    if not library.machine()["emulated"] and not torch.cuda.is_available():
        print("compare: the PyTorch of python3 has no CUDA; ./learn compare --emulator does without", file=sys.stderr)
        return 2
    kernels = [k for k in library.kernels if options.chapter in (None, k.chapter)]
    if not kernels:
        known = sorted({k.chapter[:2] for k in library.kernels})
        print(
            f"compare: chapter '{options.chapter}' has no kernel in the library; allowed: {' '.join(known)}",
            file=sys.stderr,
        )
        return 2
    return compare(torch, accuracy, library, kernels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
