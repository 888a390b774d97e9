/// \file
/// Rounds, on a clock that the tests set: their order and number, ratios, and what a bench does with kernels and peers.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "common/gpu/device.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/kernel_bench.hpp"
#include "common/stage/rounds.hpp"
#include "common/stage/table.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;

bool is_close(double a, double b) { return std::abs(a - b) < 1e-9 * std::abs(b); }

/// Launches that say who they are, and a clock that says how long they took.
struct Track {
  std::vector<std::string> order;         ///< who was launched, one after the other
  std::map<std::string, double> seconds;  ///< of a launch
  std::function<double(std::size_t)> drift = [](std::size_t) { return 1.0; };  ///< of the machine, by launch

  std::function<void()> launch(const std::string& name) {
    return [this, name] { order.push_back(name); };
  }
  stage::Clock clock() {
    return [this](const std::function<void()>& launch) {
      launch();
      return seconds.at(order.back()) * drift(order.size());
    };
  }
};

/// A right kernel in device memory that takes part in a track.
stage::ForwardKernel tracked(Track& track, const std::string& name) {
  auto kernel = device_kernel(name);
  kernel.run = [&track, name, run = kernel.run](const attention::ForwardArgs<float>& args, void* workspace) {
    track.order.push_back(name);
    run(args, workspace);
  };
  return kernel;
}

stage::ForwardKernel as_peer(stage::ForwardKernel kernel) {
  kernel.is_peer = true;
  return kernel;
}

/// The kernels' rows after a bench on the problem of chapter_with().
std::vector<stage::Row> bench(Track& track, const std::vector<stage::ForwardKernel>& kernels) {
  stage::ForwardCase forward(chapter_with({}).emulator_problem, 1);
  const std::vector<stage::AnyKernel> any(kernels.begin(), kernels.end());
  std::vector<stage::Row> rows;
  for (const auto& kernel : any) rows.push_back(stage::run_admitted(kernel, forward));
  track.order.clear();
  stage::bench(any, rows, forward, {.device = track.clock(), .host = track.clock()});
  return rows;
}

}  // namespace

TEST_CASE("A round goes forth and back, in an order of its own", "[stage]") {
  CHECK(stage::round_order(0, 0).empty());
  CHECK(stage::round_order(1, 7) == std::vector<std::size_t>{0, 0});
  std::set<std::vector<std::size_t>> orders;
  for (std::size_t round = 0; round < 60; ++round) {
    const std::vector<std::size_t> order = stage::round_order(3, round);
    REQUIRE(order.size() == 6);
    CHECK(std::set<std::size_t>(order.begin(), order.begin() + 3) == std::set<std::size_t>{0, 1, 2});
    CHECK(std::equal(order.begin(), order.begin() + 3, order.rbegin()));
    CHECK(order == stage::round_order(3, round));
    orders.insert(order);
  }
  CHECK(orders.size() == 6);
}

TEST_CASE("Rounds: 20 or more for all, fewer for very long launches", "[stage]") {
  using Plan = std::vector<std::size_t>;
  CHECK(stage::plan_rounds({}).empty());
  CHECK(stage::plan_rounds({1e-6, 1e-4}) == Plan{40, 40});
  CHECK(stage::plan_rounds({1e-6, 0.005}) == Plan{25, 25});
  CHECK(stage::plan_rounds({1e-6, 0.1, 0.5}) == Plan{20, 20, 20});
  CHECK(stage::plan_rounds({1e-6, 1.0, 2.5, 60.0}) == Plan{20, 10, 4, 3});
  CHECK(stage::plan_rounds({0.0}) == Plan{40});
}

TEST_CASE("Samples come two a round, in the order of the rounds, after a warm-up", "[stage]") {
  Track track;
  track.seconds = {{"a", 0.01}, {"b", 0.1}, {"long", 5.0}};
  const auto samples =
      stage::time_in_rounds({track.launch("a"), track.launch("b"), track.launch("long")}, track.clock());
  REQUIRE(samples.size() == 3);
  CHECK(samples[0].size() == 40);
  CHECK(samples[1] == std::vector<double>(40, 0.1));
  CHECK(samples[2].size() == 6);

  const auto of = [&](const std::string& name) { return std::count(track.order.begin(), track.order.end(), name); };
  CHECK(of("a") == 40 + 5);  // a twentieth of a second
  CHECK(of("b") == 40 + 3);
  CHECK(of("long") == 6 + 2);
  const std::vector<std::string> names = {"a", "b", "long"};
  std::vector<std::string> first_round;
  for (const std::size_t i : stage::round_order(3, 0)) first_round.push_back(names[i]);
  CHECK(std::vector<std::string>(track.order.begin() + 10, track.order.begin() + 16) == first_round);
  const std::vector<std::string> last_round(track.order.end() - 4, track.order.end());
  CHECK(std::count(last_round.begin(), last_round.end(), "a") == 2);
  CHECK(last_round.front() == last_round.back());
}

TEST_CASE("A ratio is taken round by round", "[stage]") {
  // 11 rounds whose ratios are 1.0 to 2.0, on a machine that gets slower all the while.
  std::vector<double> before, now;
  for (int round = 0; round <= 10; ++round) {
    for (int i = 0; i < 2; ++i) {
      before.push_back((1 + 0.1 * round) * (1 + round));
      now.push_back(1.0 + round);
    }
  }
  const auto ratio = stage::ratio_by_round(before, now);
  REQUIRE(ratio.has_value());
  CHECK(is_close(ratio->median, 1.5));
  CHECK(is_close(ratio->low, 1.1));
  CHECK(is_close(ratio->high, 1.9));

  // Rounds that one of them missed do not count, nor does half a round.
  now.resize(7);
  CHECK(is_close(stage::ratio_by_round(before, now)->median, 1.1));
  CHECK_FALSE(stage::ratio_by_round({1, 1}, {1}).has_value());
  CHECK_FALSE(stage::ratio_by_round({1, 1}, {}).has_value());
  CHECK_FALSE(stage::ratio_by_round({1, 1}, {0, 0}).has_value());
}

TEST_CASE("A drift of the machine falls out of the ratios", "[stage]") {
  Track track;
  track.seconds = {{"slow", 0.3}, {"fast", 0.2}};
  track.drift = [](std::size_t launch) { return 1 + 0.005 * static_cast<double>(launch); };
  const auto samples = stage::time_in_rounds({track.launch("slow"), track.launch("fast")}, track.clock());
  const auto ratio = stage::ratio_by_round(samples[0], samples[1]);
  REQUIRE(ratio.has_value());
  CHECK(is_close(ratio->median, 1.5));
  CHECK(ratio->high - ratio->low < 1e-9);
  // The medians alone span a larger range: the last sample took a third more than the first.
  CHECK(stage::percentile(samples[0], 0.9) > 1.2 * stage::percentile(samples[0], 0.1));
}

TEST_CASE("A bench times what is right, against the row before and the best peer", "[stage]") {
  Track track;
  track.seconds = {{"first", 0.3},  {"second", 0.1}, {"wrong", 0.2},
                   {"third", 0.05}, {"peer", 0.2},   {"faster_peer", 0.1}};
  const auto wrong = damaged(tracked(track, "wrong"), [](const attention::ForwardArgs<float>& args) {
    const float nan = std::nanf("");
    gpu::copy_to_device(args.o_gmem, &nan, sizeof nan);
  });
  const auto rows = bench(track, {tracked(track, "first"), tracked(track, "second"), wrong, tracked(track, "third"),
                                  as_peer(tracked(track, "peer")), as_peer(tracked(track, "faster_peer"))});
  CHECK(rows[0].seconds == 0.3);
  CHECK(rows[0].samples.size() == 40);
  CHECK_FALSE(rows[0].step_before.has_value());
  CHECK(is_close(rows[1].step_before->median, 3.0));
  CHECK(rows[1].best_peer_name == "faster_peer");
  CHECK(is_close(rows[1].best_peer->median, 1.0));
  CHECK(is_close(rows[0].best_peer->median, 1.0 / 3));

  CHECK_FALSE(rows[2].right);
  CHECK(rows[2].samples.empty());
  CHECK_FALSE(rows[2].best_peer.has_value());
  CHECK(std::count(track.order.begin(), track.order.end(), "wrong") == 0);
  CHECK_FALSE(rows[3].step_before.has_value());  // the row before was not timed

  CHECK(rows[4].is_peer);
  CHECK(rows[4].seconds == 0.2);
  CHECK_FALSE(rows[4].workspace_bytes.has_value());
  CHECK_FALSE(rows[4].step_before.has_value());
  CHECK_FALSE(rows[5].best_peer.has_value());

  const std::string text = stage::times_table(rows);
  CHECK_THAT(text, ContainsText("3.00x (3.00 … 3.00)"));
  CHECK_THAT(text, ContainsText("0.33x (0.33 … 0.33)"));
  CHECK_THAT(text, ContainsText("the time of faster_peer; above 1 the kernel is faster"));
}

TEST_CASE("A bench takes kernels on the host one by one", "[stage]") {
  Track track;
  track.seconds = {{"device", 0.1}, {"host", 0.05}};
  auto host = host_kernel("plain");
  host.run = [&track, run = host.run](const attention::ForwardArgs<float>& args, void* workspace) {
    track.order.push_back("host");
    run(args, workspace);
  };
  const auto rows = bench(track, {host, tracked(track, "device")});
  CHECK(rows[0].seconds == 0.05);
  CHECK(rows[0].samples.size() == 20);
  CHECK(rows[0].on_host);
  CHECK_FALSE(rows[1].step_before.has_value());
  CHECK(rows[1].samples.size() == 40);
}

TEST_CASE("A bench says who failed; a peer that fails leaves the others be", "[stage]") {
  Track track;
  track.seconds = {{"kernel", 0.1}, {"failing", 0.1}};
  int launches = 0;
  auto failing = tracked(track, "failing");
  failing.run = [&launches, run = failing.run](const attention::ForwardArgs<float>& args, void* workspace) {
    if (++launches > 10) throw gpu::Error("out of memory");
    run(args, workspace);
  };
  SECTION("a kernel") {
    const auto rows = bench(track, {tracked(track, "kernel"), failing});
    CHECK(rows[0].samples.empty());
    CHECK_FALSE(rows[0].seconds.has_value());
    CHECK_FALSE(rows[1].right);
    CHECK(rows[1].verdict == "failed: while it was timed: out of memory");
  }
  SECTION("a peer") {
    const auto rows = bench(track, {tracked(track, "kernel"), as_peer(failing)});
    CHECK(rows[0].samples.size() == 40);
    CHECK_FALSE(rows[0].best_peer.has_value());
    CHECK_FALSE(rows[1].right);
    CHECK(rows[1].samples.empty());
  }
}

TEST_CASE("A peer may give O alone, and O is then judged", "[stage]") {
  stage::ForwardCase forward(chapter_with({}).emulator_problem, 1);
  auto kernel = damaged(device_kernel("no_lse"), [](const attention::ForwardArgs<float>& args) {
    const float nan = std::nanf("");
    gpu::copy_to_device(args.lse_gmem, &nan, sizeof nan);
  });
  CHECK_FALSE(stage::run_admitted(kernel, forward).right);
  kernel.gives_lse = false;
  const stage::Row row = stage::run_admitted(kernel, forward);
  CHECK(row.right);
  CHECK(row.verdict == "right, O alone");
  kernel = damaged(kernel, [](const attention::ForwardArgs<float>& args) {
    const float one = 1;
    gpu::copy_to_device(args.o_gmem, &one, sizeof one);
  });
  CHECK_FALSE(stage::run_admitted(kernel, forward).right);
}

TEST_CASE("Several problems make a table of a line each", "[stage]") {
  const auto row = [](const std::string& kernel, double seconds, double ratio) {
    stage::Row row;
    row.kernel = kernel;
    row.flops = 1e12;
    row.seconds = seconds;
    if (ratio > 0) row.best_peer = stage::Ratio{ratio, ratio, ratio};
    return row;
  };
  attention::Problem small, large;
  small.seqlen_q = small.seqlen_kv = 1024;
  large.seqlen_q = large.seqlen_kv = 2048;
  stage::Row refused;
  refused.kernel = "b";
  refused.verdict = "refused: it is too long";
  const stage::ProblemRows first{small, {row("a", 0.1, 0.5), row("b", 0.05, 1), row("peer", 0.05, 0)}};
  const stage::ProblemRows second{large, {row("a", 0.1, 2), refused, row("peer", 0.2, 0)}};
  const auto table = stage::grid_table({first, second});
  REQUIRE(table.rows.size() == 3);
  CHECK(table.header == std::vector<std::string>{"problem", "a", "b", "peer"});
  CHECK(table.rows[0] == std::vector<std::string>{small.describe(), "10.00 (0.50x)", "20.00 (1.00x)", "20.00"});
  CHECK(table.rows[1][1] == "10.00 (2.00x)");
  CHECK(table.rows[1][2] == "-");
  CHECK(table.rows[2] == std::vector<std::string>{"geometric mean of the ratios", "1.00x", "1.00x", "-"});
  CHECK_THROWS_WITH(stage::grid_table({first, {large, {refused}}}), ContainsText("the same kernels in the same order"));
  CHECK(stage::grid_table({}).rows.empty());

  // Of a chapter with both passes, each has a table.
  stage::Row gradients = row("gradients", 0.1, 0);
  gradients.pass = stage::Pass::backward;
  const stage::ProblemRows both{small, {row("a", 0.1, 0), gradients}};
  CHECK(stage::grid_table({both}).header == std::vector<std::string>{"problem", "a"});
  CHECK(stage::grid_table({both}, stage::Pass::backward).header == std::vector<std::string>{"problem", "gradients"});
  CHECK(stage::grid_table({both}, stage::Pass::backward).name == "grid_backward");
}

TEST_CASE("A percentile lies between the two nearest samples", "[stage]") {
  CHECK(stage::percentile({3}, 0.1) == 3);
  CHECK(stage::percentile({2, 1}, 0.5) == 1.5);
  CHECK(stage::percentile({5, 1, 2, 3, 4}, 1) == 5);
  CHECK(stage::percentile({5, 1, 2, 3, 4}, 0) == 1);
  CHECK(std::isnan(stage::percentile({}, 0.5)));
}
