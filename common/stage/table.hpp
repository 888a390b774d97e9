#pragma once
/// \file
/// Text for a terminal: tables, wrapped sentences, figures with units.

#include <optional>
#include <string>
#include <vector>

#include "common/stage/program.hpp"

namespace stage {

/// Width that tables and sentences keep to, in characters.
inline constexpr std::size_t kTextWidth = 120;

/// A header, a rule and rows, two spaces between columns. Columns of numbers are right-aligned, and a dash is a missing
/// number. Where the table would be wider than kTextWidth, headers and cells of words are wrapped.
std::string layout_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

/// Breaks a sentence at blanks; all lines but the first begin with `indent` blanks.
std::string wrap(const std::string& text, std::size_t indent = 0);

/// "1,234,567".
std::string format_count(double count);
/// "12.3 us", "1.23 ms", "1.23 s".
std::string format_seconds(double seconds);
/// "1.2e-07"; a dash if absent. The same for those below.
std::string format_error(const std::optional<double>& error);
std::string format_count_or_dash(const std::optional<double>& count);
std::string format_bytes_or_dash(const std::optional<double>& bytes);
std::string format_ratio(const std::optional<double>& ratio);
/// "1.32x (1.30 … 1.34)": the median, and the 10th and 90th percentile.
std::string format_ratio(const Ratio& ratio);
/// "480.0 us … 520.0 us": the 10th and the 90th percentile of the samples.
std::string format_spread(const Row& row);
/// "12.34", the rate in TFLOP/s; "56.7 %" of the roof. A dash where a figure is missing.
std::string format_teraflops(const Row& row);
std::string format_share_of_roof(const Row& row);
/// "56.7 %" of a ceiling in FLOP/s.
std::string format_share(const Row& row, const std::optional<double>& ceiling);
/// How much faster than the row before: of the rounds if both took part in them, otherwise of the medians.
std::string format_step(const Row* before, const Row& now);
/// The best peer's time over the row's.
std::string format_best_peer(const Row& row);

/// How many times better `now` is than `before`: in time if `by_time`, otherwise in bytes, counted if both rows have
/// them. Absent if a figure is, if a result is not right, or if one of them is a peer's.
std::optional<double> step_ratio(const Row& before, const Row& now, bool by_time);

/// "right", "wrong", "refused", "failed": the verdict as far as it fits in a cell.
std::string short_verdict(const Row& row);

/// Drops the columns in which every cell is a dash or empty.
void drop_empty_columns(std::vector<std::string>& header, std::vector<std::vector<std::string>>& rows);

/// The chapters' common table, its legend, and the refusals in full.
std::string rows_table(const std::vector<Row>& rows);

/// What the roof is in a table with rows in 16 bits, after "of roof: "; empty where all are in fp32 or none has a roof.
std::string roof_meaning(const std::vector<Row>& rows);

/// What was timed: number of samples, median, spread, rate, share of the roof, ratios to the row before and to the best
/// peer. Empty if nothing was.
std::string times_table(const std::vector<Row>& rows);

}  // namespace stage
