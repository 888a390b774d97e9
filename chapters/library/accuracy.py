"""When a result counts as right, with PyTorch: the book's accuracy rule (common/attention/accuracy.hpp) once more,
against another implementation of attention.

Reference: PyTorch's scaled_dot_product_attention in float64, by its math backend, and autograd for the gradients. What
a kernel may be off: twice what plain attention in the same element type is off, which multiplies in running fp32 sums
and rounds P, dS and the results, plus 2 ulps. Rows are the last two axes, [..., rows, head_dim], heads in front.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ULP = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}
LEAST_NORMAL = {"fp32": 2.0**-126, "bf16": 2.0**-126, "fp16": 2.0**-14}
LARGEST_ALLOWED = 0.1
LEAST_EXACT_P = 2.0**-102  # below it fp32's P is not right to 24 bits


def visible(seqlen_q, seqlen_kv, left, right, rows=None, device="cpu"):
    """[rows, seqlen_kv]: whether a query sees a key; of the rows named, or of all. Aligned bottom-right."""
    rows = torch.arange(seqlen_q, device=device) if rows is None else rows
    distance = torch.arange(seqlen_kv, device=device)[None, :] - (rows[:, None] + (seqlen_kv - seqlen_q))
    return (distance >= -left) & (distance <= right)


def product(a, b):
    """a·b for [..., m, t] and [..., t, n] by running fp32 sums over t, as plain loops add up."""
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
    total = torch.zeros(shape, dtype=torch.float32, device=a.device)
    for t in range(a.shape[-1]):
        total += a[..., :, t, None] * b[..., None, t, :]
    return total


def rounded(x, element):
    return x.to(TYPES[element]).to(torch.float32)


def over_heads(k, heads_q):
    """K or V once for every query head."""
    return k.repeat_interleave(heads_q // k.shape[-3], dim=-3) if k.shape[-3] != heads_q else k


def reference_forward(q, k, v, seen, scale):
    """O and LSE in float64; a row that sees nothing gives 0 and -inf. Differentiable."""
    empty = ~seen.any(dim=-1)
    # PyTorch's versions differ in what they make of such a row: it sees everything here, and counts for nothing.
    shown = seen | empty[:, None]
    with sdpa_kernel(SDPBackend.MATH):
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=shown, scale=scale)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~shown, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    return o.masked_fill(empty[:, None], 0.0), lse.masked_fill(empty, -math.inf)


def plain_forward(q, k, v, seen, scale, element, folded):
    """O and LSE in fp32 sums. folded: scale and log2(e) go into q, exp2 instead of exp, O divided at the end."""
    log2e = math.log2(math.e)
    scores = product(q * (scale * log2e), k.transpose(-1, -2)) if folded else product(q, k.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~seen, -math.inf)
    most = scores.amax(dim=-1, keepdim=True)
    most = most.masked_fill(most == -math.inf, 0.0)
    p = torch.exp2(scores - most) if folded else torch.exp(scores - most)
    total = p.sum(dim=-1, keepdim=True)
    lse = (most / log2e if folded else most) + torch.log(total)
    some = total.clamp(min=1e-38)
    o = product(rounded(p, element), v) / some if folded else product(rounded(p / some, element), v)
    return rounded(o, element), lse.squeeze(-1)


def norm(x):
    return torch.linalg.vector_norm(x.double(), dim=-1)


def worst(errors):
    """The largest; NaN counts as infinite."""
    return float(torch.nan_to_num(errors, nan=math.inf, posinf=math.inf).max()) if errors.numel() else 0.0


def over(errors, sizes):
    """errors / sizes, where a size of 0 allows no error."""
    return torch.where(sizes > 0, errors / sizes, torch.where(errors == 0, 0.0, math.inf))


def worst_ratio(error, allowed):
    """The largest of error / allowed over their common keys: right is at most 1."""
    ratios = [
        error[name] / allowed[name] if allowed[name] > 0 else (0.0 if error[name] == 0 else math.inf) for name in error
    ]
    return max(math.inf if math.isnan(ratio) else ratio for ratio in ratios)


class Forward:
    """What O and LSE of one problem are measured against: made once, it serves every kernel.

    q, k, v: [..., heads, rows or keys, head_dim] in the element type; seen: [rows, keys].
    """

    def __init__(self, q, k, v, seen, scale, element):
        heads = q.shape[-3]
        k, v = over_heads(k, heads), over_heads(v, heads)
        self.element = element
        with torch.no_grad():
            self.o, self.lse = reference_forward(q.double(), k.double(), v.double(), seen, scale)
            floor = LEAST_NORMAL[element] if element != "fp32" else 0.0
            self.norms = norm(self.o)
            self.norms = torch.where(self.norms > 0, self.norms.clamp(min=floor * math.sqrt(q.shape[-1])), 0.0)
            # max |V| over the keys that a row sees
            size = v.double().abs().amax(dim=-1)
            self.largest_v = (
                torch.stack(
                    [torch.where(row, size, 0.0).amax(dim=-1) if row.numel() else size.sum(-1) for row in seen], dim=-1
                ).clamp(min=floor)
                if seen.numel()
                else self.norms
            )
            self.largest_v = torch.where(self.norms > 0, self.largest_v, 0.0)
            q, k, v = q.float(), k.float(), v.float()
            plain = [self.error(*plain_forward(q, k, v, seen, scale, element, folded)) for folded in (False, True)]
            self.plain = {name: max(form[name] for form in plain) for name in plain[0]}
            ulp = {"relative": ULP[element], "absolute": ULP[element], "lse": ULP["fp32"]}
            self.allowed = {name: 2 * self.plain[name] + 2 * ulp[name] for name in ulp}
            if element != "fp32" and q.numel() and k.numel():
                # What tensor cores lose of a score: they cut sums off where plain attention rounds.
                longest = float(norm(q).max() * norm(k).max())
                self.allowed["lse"] += q.shape[-1] / 8 * ULP["fp32"] * abs(scale) * longest

    def error(self, o, lse=None):
        """Worst errors over all rows; lse may be missing where nobody gives one."""
        off = o.double() - self.o
        found = {
            "relative": worst(over(norm(off), self.norms)),
            "absolute": worst(over(off.abs().amax(dim=-1), self.largest_v)) if off.numel() else 0.0,
        }
        if lse is not None:
            equal = (lse == self.lse) & torch.isinf(self.lse)
            found["lse"] = worst(torch.where(equal, 0.0, (lse.double() - self.lse).abs() / self.lse.abs().clamp(min=1)))
        return found

    def ratio(self, error):
        """How much of what is allowed was taken: right is at most 1."""
        if self.element != "fp32" and self.allowed["absolute"] > LARGEST_ALLOWED:
            return math.inf
        return worst_ratio(error, self.allowed)


class Backward:
    """What dQ, dK and dV are measured against, and the O and LSE that a kernel is given.

    Shapes as in Forward: all queries. dlse is [..., heads, rows] or None.
    """

    def __init__(self, q, k, v, dout, seen, scale, element, dlse=None):
        heads = q.shape[-3]
        self.element, self.seen, self.scale = element, seen, scale
        self.kv_heads = k.shape[-3]
        as_double = [x.detach().double().requires_grad_() for x in (q, k, v)]
        o, lse = reference_forward(
            as_double[0], over_heads(as_double[1], heads), over_heads(as_double[2], heads), seen, scale
        )
        self.exact_o, self.exact_lse = o.detach(), lse.detach()
        self.o, self.lse = self.exact_o.to(TYPES[element]), self.exact_lse.float()
        finite = torch.isfinite(self.exact_lse)
        self.dlse = torch.zeros_like(self.exact_lse) if dlse is None else dlse.double()
        loss = (o * dout.double()).sum() + torch.where(finite, lse, 0.0)[finite].mul(self.dlse[finite]).sum()
        self.exact = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(loss, as_double)))
        kh, vh = over_heads(k, heads), over_heads(v, heads)
        self.tensors = (q, kh, vh, dout)
        with torch.no_grad():
            self._take(self.o)
            plain = [
                self.error(self._plain(q, kh, vh, dout, seen, scale, element, self.dlse, self._to_kv_heads, folded))
                for folded in (False, True)
            ]
        self.plain = {name: max(form[name] for form in plain) for name in plain[0]}
        ulps = 2 * ULP[element] * (self.exponent if element == "fp32" else 1.0)
        self.allowed = {name: 2 * self.plain[name] + ulps for name in self.plain}

    def given(self, o):
        """The same for a kernel that is given another O, by a forward whose P were rounded. It is off by an ulp here
        and there, and D = rowsum(dO∘O) with it: in a row of few keys, where dS can be next to nothing, that is all."""
        other = copy.copy(self)
        with torch.no_grad():
            other._take(o)
        return other

    def _to_kv_heads(self, x):
        """[..., heads_q, keys, n] -> sums over each group."""
        group = x.shape[-3] // self.kv_heads
        return x.reshape(x.shape[:-3] + (self.kv_heads, group) + x.shape[-2:]).sum(dim=-3)

    def _take(self, o):
        """The reference with the D of this O, and what errors are measured against."""
        element, seen, scale = self.element, self.seen, self.scale
        q64, k64, v64, dout64 = (x.double() for x in self.tensors)
        scores = q64 @ k64.transpose(-1, -2) * scale
        safe_lse = torch.where(torch.isfinite(self.exact_lse), self.exact_lse, 0.0)
        p = torch.exp(scores - safe_lse[..., None]).masked_fill(~seen, 0.0)
        d = (dout64 * (self.exact_o if element == "fp32" else o.double())).sum(dim=-1) - self.dlse
        ds = p * (dout64 @ v64.transpose(-1, -2) - d[..., None])

        self.reference = dict(self.exact)
        if element != "fp32":  # to which the reference does not round
            more_d = (dout64 * (o.double() - self.exact_o)).sum(dim=-1)[..., None]
            self.reference["dq"] = self.exact["dq"] - scale * more_d * (p @ k64)
            self.reference["dk"] = self.exact["dk"] - scale * self._to_kv_heads(p.transpose(-1, -2) @ (more_d * q64))

        # The same sums with the absolute value of every term: what rounding may cost is measured against that.
        raised = torch.where(seen, p + LEAST_EXACT_P, 0.0)
        d_size = (dout64.abs() * self.exact_o.abs()).sum(dim=-1) + self.dlse.abs()
        ds_size = raised * (dout64.abs() @ v64.abs().transpose(-1, -2) + d_size[..., None])
        terms = {
            "dq": abs(scale) * norm(ds_size @ k64.abs()),
            "dk": abs(scale) * norm(self._to_kv_heads(ds_size.transpose(-1, -2) @ q64.abs())),
            "dv": norm(self._to_kv_heads(raised.transpose(-1, -2) @ dout64.abs())),
        }
        longest = float(norm(q64).max() * norm(k64).max()) if q64.numel() and k64.numel() else 0.0
        most_lse = float(safe_lse.abs().max()) if safe_lse.numel() else 0.0
        self.exponent = max(1.0, most_lse, abs(scale) * longest)
        if element == "fp32":
            self.magnitudes = terms
            return

        least = LEAST_NORMAL[element]
        p2 = torch.where(seen, p.clamp(min=least), 0.0) ** 2
        ds2 = torch.where(seen, ds.abs().clamp(min=least), 0.0) ** 2
        q2, k2, dout2 = ((norm(x) ** 2)[..., None] for x in (q64, k64, dout64))
        rounded_terms = {
            "dq": abs(scale) * (ds2 @ k2)[..., 0].sqrt(),
            "dk": abs(scale) * self._to_kv_heads(ds2.transpose(-1, -2) @ q2)[..., 0].sqrt(),
            "dv": self._to_kv_heads(p2.transpose(-1, -2) @ dout2)[..., 0].sqrt(),
        }
        self.magnitudes = {}
        for name, reference in self.reference.items():
            floor = math.sqrt(q64.shape[-1]) * least
            size = torch.maximum(norm(reference), rounded_terms[name]).clamp(min=floor)
            size = size + self.exponent * (ULP["fp32"] / ULP[element]) * terms[name]
            self.magnitudes[name] = torch.where(terms[name] > 0, size, 0.0)

    def _plain(self, q, k, v, dout, seen, scale, element, dlse, to_kv_heads, folded):
        q, k, v, dout = (x.float() for x in (q, k, v, dout))
        lse = torch.where(torch.isfinite(self.lse), self.lse, 0.0)[..., None]
        log2e = math.log2(math.e)
        if folded:
            p = torch.exp2(product(q * (scale * log2e), k.transpose(-1, -2)) - lse * log2e)
        else:
            p = torch.exp(product(q, k.transpose(-1, -2)) * scale - lse)
        p = p.masked_fill(~seen, 0.0)
        d = (dout * self.o.float()).sum(dim=-1) - dlse.float()
        ds = rounded(p * (product(dout, v.transpose(-1, -2)) - d[..., None]), element)
        return {
            "dq": rounded(product(ds, k) * scale, element),
            "dk": rounded(to_kv_heads(product(ds.transpose(-1, -2), q)) * scale, element),
            "dv": rounded(to_kv_heads(product(rounded(p, element).transpose(-1, -2), dout)), element),
        }

    def error(self, gradients):
        """Worst errors over all rows of dQ, dK and dV, each [..., heads, rows, head_dim]."""
        return {
            name: worst(over(norm(gradients[name].double() - reference), self.magnitudes[name]))
            for name, reference in self.reference.items()
        }

    def ratio(self, error):
        if max(self.allowed.values()) > LARGEST_ALLOWED:
            return math.inf
        return worst_ratio(error, self.allowed)
