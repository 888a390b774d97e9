"""Checks what compare.py and peers.py measure gradients against: python3 test_accuracy.py

Without PyTorch there is nothing to check: its tests are then skipped.
"""

import math
import pathlib
import sys
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "chapters" / "library"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True
try:
    import torch
    import accuracy
except ImportError:
    torch = None


@unittest.skipUnless(torch, "python3 has no PyTorch")
class TestBackward(unittest.TestCase):
    HEADS, ROWS, HEAD_DIM = 2000, 8, 64
    SCALE = HEAD_DIM**-0.5

    def setUp(self):
        """Many heads of a few causal rows, in which dS can be next to nothing."""
        torch.manual_seed(1)
        shape = (self.HEADS, self.ROWS, self.HEAD_DIM)
        self.q, self.k, self.v, self.dout = (torch.randn(shape).bfloat16() for _ in range(4))
        self.seen = accuracy.visible(self.ROWS, self.ROWS, 1 << 30, 0)
        self.yardstick = accuracy.Backward(self.q, self.k, self.v, self.dout, self.seen, self.SCALE, "bf16")

    def gradients(self, o):
        """By the formula, in float64, with the D of this O."""
        q, k, v, dout = (x.double() for x in (self.q, self.k, self.v, self.dout))
        s = (q @ k.transpose(-1, -2) * self.SCALE).masked_fill(~self.seen, -math.inf)
        p = torch.softmax(s, dim=-1)
        ds = p * (dout @ v.transpose(-1, -2) - (dout * o.double()).sum(-1, keepdim=True)) * self.SCALE
        return {"dq": ds @ k, "dk": ds.transpose(-1, -2) @ q, "dv": p.transpose(-1, -2) @ dout}

    def o_of_rounded_p(self):
        s = (self.q.float() @ self.k.float().transpose(-1, -2) * self.SCALE).masked_fill(~self.seen, -math.inf)
        p = torch.exp(s - s.amax(-1, keepdim=True))
        return ((p.bfloat16().float() @ self.v.float()) / p.sum(-1, keepdim=True)).bfloat16()

    def share(self, yardstick, gradients):
        return yardstick.ratio(yardstick.error(gradients))

    def test_o_rounded_from_the_reference(self):
        self.assertLess(self.share(self.yardstick, self.gradients(self.yardstick.o)), 1e-6)

    def test_o_of_another_forward(self):
        o = self.o_of_rounded_p()
        self.assertGreater(self.share(self.yardstick, self.gradients(o)), 1, "another O passes for the reference's")
        self.assertLess(self.share(self.yardstick.given(o), self.gradients(o)), 1e-6)
        self.assertGreater(self.share(self.yardstick.given(o), self.gradients(self.yardstick.o)), 1)

    def test_wrong_gradients(self):
        right = self.gradients(self.yardstick.o)
        for name, gradient in right.items():
            wrong = {**right, name: gradient.clone()}
            wrong[name][self.HEADS - 1, self.ROWS - 1] *= 1.1
            self.assertGreater(self.share(self.yardstick, wrong), 1, name)


if __name__ == "__main__":
    unittest.main()
