#include "common/stage/rounds.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "common/gpu/device.hpp"

namespace stage {
namespace {

constexpr int kWarmUpLaunches = 3;
constexpr double kWarmUpSeconds = 0.05;  // long enough for the clock to leave its idle state
constexpr double kLongLaunch = 0.5;      // seconds
constexpr double kMinRounds = 20, kMaxRounds = 40, kMinLongRounds = 3;
constexpr double kSeconds = 0.25, kLongSeconds = 20;  // of all launches of one kernel
constexpr std::size_t kSamplesPerRound = 2;

}  // namespace

Clock device_clock() {
  const auto stopwatch = std::make_shared<gpu::Stopwatch>();
  return [stopwatch](const std::function<void()>& launch) {
    stopwatch->start();
    launch();
    return stopwatch->stop_seconds();
  };
}

Clock host_clock() {
  return [](const std::function<void()>& launch) {
    const auto start = std::chrono::steady_clock::now();
    launch();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
}

std::vector<std::size_t> round_order(std::size_t count, std::size_t round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(static_cast<std::mt19937::result_type>(round));
  // Not std::shuffle, which need not draw alike everywhere.
  for (std::size_t left = count; left > 1; --left) std::swap(order[left - 1], order[random() % left]);
  for (std::size_t i = count; i-- > 0;) order.push_back(order[i]);
  return order;
}

std::vector<std::size_t> plan_rounds(const std::vector<double>& seconds_per_launch) {
  double common = kMaxRounds;
  for (const double seconds : seconds_per_launch) {
    if (seconds > 0) common = std::min(common, std::max(kMinRounds, kSeconds / kSamplesPerRound / seconds));
  }
  std::vector<std::size_t> rounds;
  for (const double seconds : seconds_per_launch) {
    const double own = seconds > kLongLaunch
                           ? std::clamp(kLongSeconds / kSamplesPerRound / seconds, kMinLongRounds, kMinRounds)
                           : common;
    rounds.push_back(static_cast<std::size_t>(own));
  }
  return rounds;
}

double warm_up(const std::function<double()>& seconds_of_one_launch) {
  double spent = 0, least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kWarmUpLaunches || (spent < kWarmUpSeconds && i < 1000); ++i) {
    const double seconds = seconds_of_one_launch();
    spent += seconds;
    least = std::min(least, seconds);
    if (i > 0 && least > kLongLaunch) break;
  }
  return least;
}

std::vector<std::vector<double>> time_in_rounds(const std::vector<std::function<void()>>& launches,
                                                const Clock& clock) {
  std::vector<double> seconds;
  for (const auto& launch : launches) seconds.push_back(warm_up([&] { return clock(launch); }));

  const std::vector<std::size_t> rounds = plan_rounds(seconds);
  const std::size_t most = rounds.empty() ? 0 : *std::max_element(rounds.begin(), rounds.end());
  std::vector<std::vector<double>> samples(launches.size());
  for (std::size_t round = 0; round < most; ++round) {
    for (const std::size_t i : round_order(launches.size(), round)) {
      if (round < rounds[i]) samples[i].push_back(clock(launches[i]));
    }
  }
  return samples;
}

std::optional<Ratio> ratio_by_round(const std::vector<double>& before, const std::vector<double>& now) {
  std::vector<double> ratios;
  const std::size_t common = std::min(before.size(), now.size());
  for (std::size_t i = 0; i + kSamplesPerRound <= common; i += kSamplesPerRound) {
    const double was = before[i] + before[i + 1];
    const double is = now[i] + now[i + 1];
    if (is > 0) ratios.push_back(was / is);
  }
  if (ratios.empty()) return std::nullopt;
  return Ratio{.median = percentile(ratios, 0.5), .low = percentile(ratios, 0.1), .high = percentile(ratios, 0.9)};
}

double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(samples.begin(), samples.end());
  const double at = share * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return std::lerp(samples[below], samples[above], at - std::floor(at));
}

}  // namespace stage
