/// \file
/// Plain attention in 16 bits against numbers worked out by hand, and what the float64 reference makes of a stored O.

#include <cmath>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/attention/reference.hpp"
#include "tests/catch.hpp"

using attention::ElementType;
using attention::Inputs;
using attention::PlainBackward;
using attention::PlainForm;
using attention::PlainForward;
using attention::Problem;
using Catch::Matchers::WithinAbs;
using Floats = std::vector<float>;

namespace {

constexpr PlainForm kForms[] = {PlainForm::textbook, PlainForm::folded_scale};

/// The number after 1.
constexpr float kNextBf16 = 1 + 0x1p-7f, kNextFp16 = 1 + 0x1p-10f;

/// head_dim 1 and scale 1.
Problem scalar(int seqlen_q, int seqlen_kv, ElementType type) {
  Problem p{.seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .head_dim = 1, .softmax_scale = 1.0f};
  p.element_type = type;
  return p;
}

float o_of(const Problem& p, const Inputs& in, PlainForm form) {
  return attention::plain_forward(p, in.q, in.k, in.v, form).o.at(0);
}

}  // namespace

TEST_CASE("P is rounded before it meets V: normalised in one form, before the division in the other") {
  // Three equal scores. The textbook's P is 1/3, of which bf16 makes 171/512; the folded form's is 1.
  SECTION("bf16") {
    const Problem p = scalar(1, 3, ElementType::bf16);
    const Inputs in{{0}, {1, 1, 1}, {1, 1, kNextBf16}};
    // 171/512 · 3.0078125 = 1.00456 is nearer to 1.0078125 than to 1; 3.0078125 / 3 = 1.00260 is not.
    CHECK(o_of(p, in, PlainForm::textbook) == kNextBf16);
    CHECK(o_of(p, in, PlainForm::folded_scale) == 1);
  }
  SECTION("fp16: 1365/4096 is less than 1/3") {
    const Problem p = scalar(1, 3, ElementType::fp16);
    const Inputs in{{0}, {1, 1, 1}, {1, 1, 1 + 0x1p-9f}};
    // 1365/4096 · 3.001953 = 1.000407 is nearer to 1 than to 1.000977; 3.001953 / 3 = 1.000651 is not.
    CHECK(o_of(p, in, PlainForm::textbook) == 1);
    CHECK(o_of(p, in, PlainForm::folded_scale) == kNextFp16);
  }
  SECTION("fp32 is not rounded") {
    const Problem p = scalar(1, 3, ElementType::fp32);
    for (const PlainForm form : kForms)
      CHECK_THAT(o_of(p, {{0}, {1, 1, 1}, {1, 1, kNextBf16}}, form), WithinAbs(3.0078125 / 3, 2e-7));
  }
}

TEST_CASE("the sum of a row is that of the unrounded P") {
  // Scores 0 and 40 times −0.69140625, of which exp makes 0.500871 and bf16 0.5; V is 0 and 40 times 1.
  const Problem p = scalar(1, 41, ElementType::bf16);
  Inputs in{{1}, Floats(41, -0.69140625f), Floats(41, 1.0f)};
  in.k[0] = in.v[0] = 0;
  // 20 / 21.03484 = 0.950804 = 243.41/256. With a sum of rounded P it would be 20 / 21 = 243.81/256.
  CHECK(o_of(p, in, PlainForm::folded_scale) == 243.0f / 256);
  // P = 0.500871 / 21.03484 = 195.06/8192: 40 · 195/8192 = 243.75/256.
  CHECK(o_of(p, in, PlainForm::textbook) == 244.0f / 256);
  for (const PlainForm form : kForms)
    CHECK_THAT(attention::plain_forward(p, in.q, in.k, in.v, form).lse.at(0), WithinAbs(std::log(21.034840), 1e-6));
}

TEST_CASE("what plain attention returns in 16 bits is of the type, and LSE is not rounded to it") {
  Problem p{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 20, .seqlen_kv = 30, .head_dim = 16};
  p.mask = attention::Mask::causal();
  p.element_type = GENERATE(ElementType::fp16, ElementType::bf16);
  const Inputs in = attention::make_inputs(p, attention::InputKind::normal, 3);
  const Floats dout = attention::make_output_gradient(p, 3);
  const auto of_type = [&p](const Floats& values) {
    int wrong = 0;
    for (const float x : values) wrong += x != attention::rounded(x, p.element_type);
    return wrong == 0;
  };
  for (const PlainForm form : kForms) {
    const PlainForward forward = attention::plain_forward(p, in.q, in.k, in.v, form);
    CHECK(of_type(forward.o));
    CHECK_FALSE(of_type(forward.lse));
    const PlainBackward backward =
        attention::plain_backward(p, in.q, in.k, in.v, forward.o, forward.lse, dout, {}, form);
    CHECK(of_type(backward.dq));
    CHECK(of_type(backward.dk));
    CHECK(of_type(backward.dv));
  }
}

TEST_CASE("P is rounded before dV, over queries and over the heads of a group") {
  // P = exp(0 − log 3) = 1/3 three times: as above, but dV sums over queries.
  const float log3 = std::log(3.0f);
  for (const PlainForm form : kForms) {
    const Problem queries = scalar(3, 1, ElementType::bf16);
    const Floats dout{1, 1, kNextBf16};
    CHECK(
        attention::plain_backward(queries, Floats(3), Floats(1), Floats{1}, Floats(3), Floats(3, log3), dout, {}, form)
            .dv == Floats{kNextBf16});
    Problem heads = scalar(1, 1, ElementType::bf16);
    heads.heads_q = 3;
    CHECK(attention::plain_backward(heads, Floats(3), Floats(1), Floats{1}, Floats(3), Floats(3, log3), dout, {}, form)
              .dv == Floats{kNextBf16});
    Problem fp32 = queries;
    fp32.element_type = ElementType::fp32;
    CHECK_THAT(
        attention::plain_backward(fp32, Floats(3), Floats(1), Floats{1}, Floats(3), Floats(3, log3), dout, {}, form)
            .dv.at(0),
        WithinAbs(3.0078125 / 3, 2e-7));
  }
}

TEST_CASE("dS is rounded before dQ and dK, and made of the unrounded P") {
  const float log3 = std::log(3.0f);
  for (const PlainForm form : kForms) {
    // V = 2, O = 1 and dO = 1: dP − D = 1, so that dS = 1/3, of which bf16 makes 171/512.
    const PlainBackward dk =
        attention::plain_backward(scalar(3, 1, ElementType::bf16), Floats{1, 1, kNextBf16}, Floats{0}, Floats{2},
                                  Floats(3, 1.0f), Floats(3, log3), Floats(3, 1.0f), {}, form);
    CHECK(dk.dk == Floats{kNextBf16});
    CHECK(dk.dv == Floats{1});  // 513/512, which is rounded at the end
    const PlainBackward dq =
        attention::plain_backward(scalar(1, 3, ElementType::bf16), Floats{0}, Floats{1, 1, kNextBf16}, Floats(3, 2.0f),
                                  Floats{1}, Floats{log3}, Floats{1}, {}, form);
    CHECK(dq.dq == Floats{kNextBf16});
    // dP − D = 3.015625 − 0.0078125. A third of it is 1.00260, which becomes 1; 171/512 of it is 1.00456, which
    // would not.
    const PlainBackward unrounded_p =
        attention::plain_backward(scalar(1, 1, ElementType::bf16), Floats{1}, Floats{0}, Floats{3.015625f},
                                  Floats{0.0078125f}, Floats{log3}, Floats{1}, {}, form);
    CHECK(unrounded_p.dk == Floats{1});
    // The scale is not rounded with dS: 171/512 · 1.0078125 · 3 = 1.00978, between 1.0078125 and 1.015625.
    Problem scaled = scalar(1, 1, ElementType::bf16);
    scaled.softmax_scale = 3.0f;
    CHECK(attention::plain_backward(scaled, Floats{kNextBf16}, Floats{0}, Floats{2}, Floats{1}, Floats{log3}, Floats{1},
                                    {}, form)
              .dk == Floats{kNextBf16});
  }
}

TEST_CASE("the reference's D is made of O as it is stored") {
  // Two equal scores, V = 1 and 1.0078125: O = 1.00390625, which bf16 stores as 1. With dO = 1, dP − D is 0 and
  // 0.0078125, where the exact O would make it ∓0.00390625.
  const auto dq = [](ElementType type) {
    return attention::reference_backward(scalar(1, 2, type), Floats{0}, Floats{1, 1}, Floats{1, kNextBf16}, Floats{1})
        .dq.at(0);
  };
  CHECK(dq(ElementType::fp32) == 0);
  CHECK(dq(ElementType::fp16) == 0);  // stores this O exactly
  CHECK(dq(ElementType::bf16) == 0.5 * 0.0078125);
  const Problem p = scalar(1, 2, ElementType::bf16);
  CHECK(attention::reference_pass(p, Floats{0}, Floats{1, 1}, Floats{1, kNextBf16}, Floats{1}).forward.o ==
        std::vector<double>{1.00390625});
  for (const PlainForm form : kForms) {
    const float log2 = std::log(2.0f);
    CHECK_THAT(attention::plain_backward(p, Floats{0}, Floats{1, 1}, Floats{1, kNextBf16}, Floats{1}, Floats{log2},
                                         Floats{1}, {}, form)
                   .dq.at(0),
               WithinAbs(0.5 * 0.0078125, 1e-8));
  }
}

TEST_CASE("the terms that 16 bits round") {
  // As above, with head_dim 1: dS = 0 and 2⁻⁸, P = 1/2 twice.
  Problem p = scalar(1, 2, ElementType::bf16);
  p.softmax_scale = -2.0f;
  auto terms = attention::reference_pass(p, Floats{0}, Floats{3, 4}, Floats{1, kNextBf16}, Floats{1}).rounded_terms;
  CHECK_THAT(terms.dq.at(0), WithinAbs(2 * 0x1p-8 * 4, 1e-15));
  CHECK(terms.dk.at(1) == 0);  // Q is 0
  CHECK_THAT(terms.dv.at(0), WithinAbs(0.5, 1e-15));

  // Equal V: dS = 0, which counts as the least normal number.
  p.element_type = ElementType::fp16;
  terms = attention::reference_pass(p, Floats{0}, Floats{3, 4}, Floats{1, 1}, Floats{1}).rounded_terms;
  CHECK_THAT(terms.dq.at(0), WithinAbs(2 * 0x1p-14 * 5, 1e-15));

  // dK and dV: over queries and heads of the group; Q = 0 for all, P = 1 with one key.
  Problem group = scalar(2, 1, ElementType::bf16);
  group.heads_q = 2;
  terms = attention::reference_pass(group, Floats(4), Floats{1}, Floats{1}, Floats{1, 2, 2, 4}).rounded_terms;
  CHECK_THAT(terms.dv.at(0), WithinAbs(5, 1e-15));
  CHECK(terms.dv.size() == 1);
  CHECK(terms.dq.size() == 4);

  p.element_type = ElementType::fp32;
  terms = attention::reference_pass(p, Floats{0}, Floats{3, 4}, Floats{1, 1}, Floats{1}).rounded_terms;
  CHECK(terms.dq.empty());
}
