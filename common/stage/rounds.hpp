#pragma once
/// \file
/// Times that can be compared: several kernels take turns, forth and back, in many rounds.
///
/// A GPU's clock moves with its temperature and power, so that two kernels timed one after the other may see two
/// different machines. In a round A B C C B A each is launched twice, once early and once late: a slow drift falls on
/// all alike, and a ratio taken round by round holds where the times themselves move. Who is A, B and C is drawn anew
/// for each round, since a launch feels its neighbours, too: what heated the GPU before it, and what the L2 still
/// holds.

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace stage {

/// The median of a ratio over the rounds, and its 10th and 90th percentile.
struct Ratio {
  double median = 0, low = 0, high = 0;
};

/// Runs a launch and returns its seconds. Tests bring a clock of their own.
using Clock = std::function<double(const std::function<void()>& launch)>;

/// GPU events around the launch; waits for it. The GPU passes the first event when the launch stands in its queue
/// already: the host's time for it does not count.
Clock device_clock();
/// The host's clock, for a launch that is over when it returns.
Clock host_clock();

/// The indices of `count` kernels in the order of a round: 1 0 2 2 0 1, say. Another round has another order, and every
/// run the same ones.
std::vector<std::size_t> round_order(std::size_t count, std::size_t round);

/// Rounds that each kernel takes part in, by the seconds of one launch.
///
/// At least 20, and up to 40, the same for all, while none of them takes more than a quarter of a second in all. A
/// kernel that takes more than half a second a launch takes part in the first rounds only: as many as fit in 20
/// seconds, but 3.
std::vector<std::size_t> plan_rounds(const std::vector<double>& seconds_per_launch);

/// Warms up, then times the launches in rounds. \return for each its samples in seconds, two a round, in the order of
/// the rounds.
std::vector<std::vector<double>> time_in_rounds(const std::vector<std::function<void()>>& launches, const Clock& clock);

/// `before` over `now`, round by round: above 1 where `now` is the faster. Rounds that one of them missed do not count.
/// Nothing if none is left.
std::optional<Ratio> ratio_by_round(const std::vector<double>& before, const std::vector<double>& now);

/// Launches until caches, modules and clocks are warm: three times, and for a twentieth of a second; twice where both
/// take more than half a second. \return the seconds of the fastest of these launches.
double warm_up(const std::function<double()>& seconds_of_one_launch);

/// The sample below which `share` of the samples lie, by linear interpolation between the two nearest; NaN of none.
double percentile(std::vector<double> samples, double share);

}  // namespace stage
